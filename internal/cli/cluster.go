package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

// ClusterCmd has the commands that administer the coordinators.
type ClusterCmd struct {
	Status   clusterStatusCmd   `cmd:"" help:"List coordinators and their state."`
	Add      clusterAddCmd      `cmd:"" changes:"" help:"Add a coordinator that has been started, or give a non-voter its vote."`
	Remove   clusterRemoveCmd   `cmd:"" changes:"" help:"Remove a coordinator from the cluster."`
	Transfer clusterTransferCmd `cmd:"" changes:"" help:"Hand the leadership to another coordinator."`
	Snapshot clusterSnapshotCmd `cmd:"" help:"Save the directory to a file."`
	Restore  clusterRestoreCmd  `cmd:"" changes:"" help:"Make a saved directory the state of a stopped coordinator, from which the others then start."`
}

func memberRow(m admin.Member) []string {
	role, state := "voter", "ok"
	switch {
	case m.Leader:
		role = "leader"
	case !m.Voter:
		role = "non-voter"
	}
	if !m.Reachable {
		return []string{m.ID, m.Address, role, "does not answer", "", "", "", ""}
	}
	return []string{m.ID, m.Address, role, state, number(m.Term), number(m.AppliedIndex), m.HTTPAddress, m.Version}
}

func membersTable(w io.Writer, all *admin.Members) {
	var rows [][]string
	for _, m := range all.Members {
		rows = append(rows, memberRow(m))
	}
	table(w, "ID ADDRESS ROLE STATE TERM APPLIED HTTP VERSION", rows)
	fmt.Fprintf(w, "cluster %s, epoch %d, leader %s\n", cmp.Or(all.Cluster, "-"), all.Epoch, cmp.Or(all.Leader, "-"))
}

type clusterStatusCmd struct {
	OutputFlags
	RemoteFlags
}

func (c *clusterStatusCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterStatusCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	all, noLeader := a.Members(ctx)
	if all == nil {
		return noLeader
	}
	if err := c.Print(con.Stdout, all, func(w io.Writer) { membersTable(w, all) }); err != nil {
		return err
	}
	return noLeader
}

type clusterAddCmd struct {
	ID       string `arg:"" help:"Its node id."`
	Address  string `arg:"" help:"Its cluster port, host:port."`
	NonVoter bool   `help:"Replicate to it, but give it no vote."`
	RemoteFlags
}

func (c *clusterAddCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterAddCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	if err := a.AddMember(ctx, c.ID, c.Address, c.NonVoter); err != nil {
		return err
	}
	if c.NonVoter {
		fmt.Fprintf(con.Stdout, "%s is a non-voter\n", c.ID)
	} else {
		fmt.Fprintf(con.Stdout, "%s is added; it votes as soon as it has caught up, which \"rollcall cluster status\" shows\n", c.ID)
	}
	return nil
}

type clusterRemoveCmd struct {
	ID string `arg:"" help:"Its node id."`
	RemoteFlags
}

func (c *clusterRemoveCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterRemoveCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	if err := a.RemoveMember(ctx, c.ID); err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "%s is removed; stop its process now\n", c.ID)
	return nil
}

type clusterTransferCmd struct {
	To string `arg:"" optional:"" help:"Node id of the next leader; by default the one furthest ahead of those that keep up."`
	RemoteFlags
}

func (c *clusterTransferCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterTransferCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	leader, transferred, err := a.Transfer(ctx, c.To)
	if err != nil {
		return err
	}
	if transferred {
		fmt.Fprintf(con.Stdout, "%s leads, epoch %d\n", leader.Node, leader.Epoch)
	} else {
		fmt.Fprintf(con.Stdout, "%s leads already, epoch %d\n", leader.Node, leader.Epoch)
	}
	return nil
}

type clusterSnapshotCmd struct {
	File string `arg:"" help:"File to write, replaced when whole; - writes standard output."`
	RemoteFlags
}

func (c *clusterSnapshotCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterSnapshotCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	snapshot, leader, err := a.Snapshot(ctx)
	if err != nil {
		return err
	}
	if c.File == "-" {
		_, err := io.Copy(con.Stdout, snapshot)
		return err
	}
	size, err := replaceFile(c.File, func(w io.Writer) (int64, error) { return io.Copy(w, snapshot) })
	if err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "%s: %d bytes, from %s, epoch %d\n", c.File, size, leader.Node, leader.Epoch)
	return nil
}

// replaceFile writes a file aside and renames it when it is whole and on disk.
func replaceFile(path string, write func(io.Writer) (int64, error)) (size int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	size, err = write(f)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	return size, os.Rename(f.Name(), path)
}
