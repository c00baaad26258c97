package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
	"github.com/rollcall-dev/rollcall/internal/discovery/directoryfile"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

type servicesExportCmd struct {
	File string `arg:"" help:"File to write, replaced when whole; - writes standard output."`
	RemoteFlags
}

func (servicesExportCmd) Help() string {
	return `The file has one version of the directory: a line of JSON for each service with its owner, and a checksum. "rollcall
services import" replaces the directory by it, on this cluster or another one.`
}

func (c *servicesExportCmd) Check(p *config.Problems) { c.check(p) }

func (c *servicesExportCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	state, err := a.ReadDirectory(ctx)
	if err != nil {
		return err
	}
	if c.File == "-" {
		_, err := directoryfile.Write(con.Stdout, state, time.Now())
		return err
	}
	var head directoryfile.Header
	_, err = replaceFile(c.File, func(w io.Writer) (int64, error) {
		head, err = directoryfile.Write(w, state, time.Now())
		return 0, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "%s: %s, from cluster %s, epoch %d, index %d\n", c.File, plural(head.Services, "service"), head.Cluster, head.Epoch, head.Index)
	return nil
}

// ServicesImportCmd replaces the directory by the content of a file.
type ServicesImportCmd struct {
	File   string `arg:"" help:"File that \"services export\" wrote; - reads standard input, with --yes or --dry-run."`
	DryRun bool   `help:"Show the difference, and change nothing."`
	Yes    bool   `help:"Do not ask for a confirmation."`
	OutputFlags
	RemoteFlags
}

// Help returns the details of the help.
func (ServicesImportCmd) Help() string {
	return `Afterwards the directory holds exactly the services of the file, with their owners; all others are deregistered. This is
done completely or not at all, and a repeat is harmless. Gateways register again within a minute the services that they define,
and the leader registers its static fleet. All voting coordinators must answer.`
}

// Check reports problems of the settings.
func (c *ServicesImportCmd) Check(p *config.Problems) { c.check(p) }

// importResult is the difference that an import makes, and its result, for scripts.
type importResult struct {
	*admin.ImportPlan
	// Imported reports whether the import was done. Epoch and Index are 0 otherwise.
	Imported bool   `json:"imported"`
	Epoch    uint64 `json:"epoch"`
	Index    uint64 `json:"index"`
}

// printPlan prints each service that changes.
func printPlan(w io.Writer, p *admin.ImportPlan) {
	if p.From != p.Cluster {
		fmt.Fprintf(w, "the file is of cluster %s, this is cluster %s\n", p.From, p.Cluster)
	}
	for _, s := range p.Removed {
		fmt.Fprintln(w, eventLine(admin.Event{Event: "removed", Before: &s}))
	}
	for _, s := range p.Changed {
		fmt.Fprintln(w, eventLine(admin.Event{Event: "changed", Before: &s.Before, Service: &s.After}))
	}
	for _, s := range p.Added {
		fmt.Fprintln(w, eventLine(admin.Event{Event: "added", Service: &s}))
	}
	fmt.Fprintf(w, "%d to add, %d to change, %d to remove, %d unchanged\n", len(p.Added), len(p.Changed), len(p.Removed), p.Unchanged)
}

// Run runs the command.
func (c *ServicesImportCmd) Run(ctx context.Context, con *Console) error {
	file, err := c.readFile(con.Stdin)
	if err != nil {
		return err
	}
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	plan, err := a.PlanImport(ctx, file)
	if err != nil {
		return err
	}
	result, show := importResult{ImportPlan: plan}, func(w io.Writer) { printPlan(w, plan) }
	if c.DryRun {
		return c.Print(con.Stdout, result, show)
	}
	if !c.Yes {
		if err := confirm(ctx, con, c.OutputFlags, false, show, "Replace the directory?"); err != nil {
			return err
		}
	}
	resp, err := a.Import(ctx, file)
	if _, unknown := errors.AsType[*gateway.UnknownOutcomeError](err); unknown {
		return WithFix(err, `See whether it was done with "rollcall services import --dry-run %s"; to repeat it is harmless.`, c.File)
	}
	if err != nil {
		return err
	}
	result.Imported, result.Epoch, result.Index = true, resp.GetEpoch(), resp.GetIndex()
	return c.Print(con.Stdout, result, func(w io.Writer) {
		// The leader's counts: the directory may have changed since the difference was shown.
		fmt.Fprintf(w, "imported %s: registered %d, unchanged %d, removed %d; epoch %d, index %d\n", plural(len(file.Records), "service"),
			resp.GetRegistered(), resp.GetUnchanged(), resp.GetRemoved(), resp.GetEpoch(), resp.GetIndex())
	})
}

// readFile reads and checks the file before anything is sent.
func (c *ServicesImportCmd) readFile(stdin io.Reader) (*directoryfile.File, error) {
	name, in := "standard input", stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, UsageError{Err: err}
		}
		defer f.Close()
		name, in = c.File, bufio.NewReader(f)
	}
	file, err := admin.ReadFile(in)
	if refused, ok := errors.AsType[*directoryfile.Error](err); ok {
		return nil, WithFix(fmt.Errorf("%s, %w", name, err), "%s", refused.Remedy)
	}
	if errors.Is(err, admin.ErrNothingToImport) {
		return nil, WithFix(fmt.Errorf("%s %w", name, err), `If that is meant, use "rollcall services deregister".`)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}
