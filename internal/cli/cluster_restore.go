package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

type clusterRestoreCmd struct {
	File string `arg:"" help:"File that \"cluster snapshot\" wrote; - reads standard input."`
	NodeFlags
	OutputFlags
}

// Help describes the procedure, of which the command is one step.
func (c *clusterRestoreCmd) Help() string {
	return `Stop all coordinators first. Run this command for one of them, with the settings it starts with, and start it.
Empty the data folders of the others and start them; they then receive the directory from the first.

An interrupted restore is finished by a repeat. The former state is moved aside within the data folder.`
}

func (c *clusterRestoreCmd) Check(p *config.Problems) { c.CheckFlags(p, false) }

func (c *clusterRestoreCmd) Run(ctx context.Context, con *Console) error {
	in := con.Stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return UsageError{Err: err}
		}
		defer f.Close()
		in = f
	}
	restored, err := coordinator.Restore(ctx, coordinator.RestoreConfig{ID: c.NodeID, DataDir: c.DataDir, Peers: c.PeerList()}, in)
	if _, damaged := errors.AsType[*fsm.DecodeError](err); damaged {
		return WithFix(err, "Restore a file that \"rollcall cluster snapshot\" wrote. Nothing was changed.")
	}
	if errors.Is(err, raftstore.ErrLocked) {
		return WithFix(err, "Stop all coordinators before a restore. Nothing was changed.")
	}
	if err != nil {
		return err
	}
	return c.Print(con.Stdout, restored, func(w io.Writer) {
		fmt.Fprintf(w, "restored %s of cluster %s in %s\n", plural(restored.Services, "service"), restored.Cluster, c.DataDir)
		if restored.Former != "" {
			fmt.Fprintf(w, "The former state is in %s; remove it once the cluster works.\n", restored.Former)
		}
		fmt.Fprintf(w, "Start %s now.", c.NodeID)
		if len(restored.Others) > 0 {
			fmt.Fprintf(w, " Then empty the data folders of %s, and start them.", strings.Join(restored.Others, " and "))
		}
		fmt.Fprintln(w)
	})
}
