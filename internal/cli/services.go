package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// ServicesCmd has the commands for the service directory.
type ServicesCmd struct {
	List       servicesListCmd       `cmd:"" help:"List the directory."`
	Get        servicesGetCmd        `cmd:"" help:"Show services by id."`
	Register   servicesRegisterCmd   `cmd:"" changes:"" help:"Register services, as the operator."`
	Deregister servicesDeregisterCmd `cmd:"" changes:"" help:"Remove services."`
	Watch      servicesWatchCmd      `cmd:"" help:"Print the directory, then every change, until interrupted."`
	Export     servicesExportCmd     `cmd:"" help:"Write all services and their owners to a file."`
	Import     ServicesImportCmd     `cmd:"" changes:"" help:"Replace all services by those of an exported file."`
}

func serviceRow(s admin.Service) []string {
	var labels []string
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		labels = append(labels, k+"="+s.Labels[k])
	}
	return []string{s.ID, s.Kind, s.URL, s.Node, s.Owner, strings.Join(labels, ",")}
}

func directoryTable(w io.Writer, d *admin.Directory) {
	rows := make([][]string, 0, len(d.Services))
	for _, s := range d.Services {
		rows = append(rows, serviceRow(s))
	}
	table(w, "ID KIND URL NODE OWNER LABELS", rows)
	fmt.Fprintf(w, "%s, epoch %d, index %d\n", plural(len(d.Services), "service"), d.Epoch, d.Index)
}

type servicesListCmd struct {
	Kind  string `help:"Only services of this kind."`
	Stale bool   `help:"Ask any coordinator for its copy, which may lag: also works without a leader."`
	OutputFlags
	RemoteFlags
}

func (c *servicesListCmd) Check(p *config.Problems) {
	c.check(p)
	checkKind(p, &c.Kind)
}

// checkKind refuses a kind to choose by that no service can have.
func checkKind(p *config.Problems, kind *string) {
	if *kind == "" {
		return
	}
	if err := rollcallv1.CheckDNSLabel(*kind); err != nil {
		p.Addf(kind, "", "%v", err)
	}
}

// checkIDs refuses ids that no service can have.
func checkIDs(p *config.Problems, ids []string) {
	for _, id := range ids {
		if err := rollcallv1.CheckDNSLabel(id); err != nil {
			p.Add(config.Problem{Where: "ID", What: err.Error()})
		}
	}
}

func (c *servicesListCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	d, err := a.Services(ctx, admin.Selection{Kind: c.Kind, Stale: c.Stale})
	if err != nil {
		return err
	}
	return c.Print(con.Stdout, d, func(w io.Writer) { directoryTable(w, d) })
}

type servicesGetCmd struct {
	ID    []string `arg:"" help:"Ids of services."`
	Stale bool     `help:"Ask any coordinator for its copy, which may lag: also works without a leader."`
	OutputFlags
	RemoteFlags
}

func (c *servicesGetCmd) Check(p *config.Problems) {
	c.check(p)
	checkIDs(p, c.ID)
}

func (c *servicesGetCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	d, err := a.Services(ctx, admin.Selection{IDs: c.ID, Stale: c.Stale})
	if err != nil {
		return err
	}
	if len(d.Services) > 0 || c.Output != "table" { // to people an empty table says less than the error
		if err := c.Print(con.Stdout, d, func(w io.Writer) { directoryTable(w, d) }); err != nil {
			return err
		}
	}
	if missing := d.Missing(c.ID); len(missing) > 0 {
		return fmt.Errorf("not in the directory: %s", strings.Join(missing, ", "))
	}
	return nil
}

type servicesRegisterCmd struct {
	ID     string            `arg:"" optional:"" help:"Id of the service, a DNS label such as oz-relayer-1. Not with --file."`
	URL    string            `name:"url" placeholder:"URL" help:"Where it is reached: http, https, grpc, grpcs or tcp."`
	Kind   string            `default:"relayer" help:"Its kind."`
	Node   string            `help:"The host it runs on; informative."`
	Labels map[string]string `name:"label" placeholder:"KEY=VALUE" help:"A label; may be repeated."`
	File   string            `short:"f" placeholder:"FILE" help:"YAML or JSON file of services, as a gateway's definitions folder holds them; - reads standard input."`
	Force  bool              `help:"Take services over from their present owners. From then on the directory refuses them to a gateway that still defines them."`
	OutputFlags
	RemoteFlags
}

func (c *servicesRegisterCmd) Check(p *config.Problems) {
	c.check(p)
	if c.File != "" {
		if c.URL != "" || c.ID != "" {
			p.Addf(&c.File, "give one of them", "contradicts an id or --url")
		}
		return
	}
	c.checkService(p)
}

// checkService reports what is wrong with the one service that the flags describe.
func (c *servicesRegisterCmd) checkService(p *config.Problems) {
	if c.ID == "" {
		p.Add(config.Problem{Where: "ID", What: "is missing", Fix: "give one such as oz-relayer-1, or --file"})
	}
	if c.Kind == "" {
		p.Addf(&c.Kind, `give a DNS label such as "relayer", the default`, "is empty")
	}
	if c.URL == "" {
		p.Addf(&c.URL, "give an id with --url, or --file", "is missing")
	}
	for _, v := range c.service().Validate() {
		switch v.Field {
		case "id":
			if c.ID != "" {
				p.Add(config.Problem{Where: "ID", What: v.Description})
			}
		case "kind":
			p.Addf(&c.Kind, "", "%s", v.Description)
		case "worker_ref.url":
			value := ""
			if !strings.Contains(c.URL, "@") { // before it may stand a password
				value = strconv.Quote(c.URL[:min(len(c.URL), 100)]) + " "
			}
			p.Addf(&c.URL, "", "%s%s", value, v.Description)
		case "worker_ref.node":
			p.Addf(&c.Node, "", "%s", v.Description)
		default:
			p.Addf(&c.Labels, "", "%s", v.Description)
		}
	}
}

// service is what the flags describe.
func (c *servicesRegisterCmd) service() *rollcallv1.Service {
	return &rollcallv1.Service{
		Id: c.ID, Kind: c.Kind,
		WorkerRef: &rollcallv1.WorkerRef{Url: c.URL, Node: c.Node, Labels: c.Labels},
	}
}

func (c *servicesRegisterCmd) Run(ctx context.Context, con *Console) error {
	var services []*rollcallv1.Service
	if c.File != "" {
		var err error
		if services, err = readDefinitions(c.File, con.Stdin); err != nil {
			return UsageError{Err: err}
		}
	} else {
		services = append(services, c.service())
	}
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	result, err := a.Register(ctx, services, c.Force)
	if err != nil {
		return err
	}
	return c.Print(con.Stdout, result, func(w io.Writer) {
		fmt.Fprintf(w, "registered %d, unchanged %d, epoch %d, index %d\n", result.Registered, result.Unchanged, result.Epoch, result.Index)
	})
}

type servicesDeregisterCmd struct {
	ID    []string `arg:"" help:"Ids of services."`
	Force bool     `help:"Remove them whichever owner they have. A gateway that still defines one registers it again."`
	OutputFlags
	RemoteFlags
}

func (servicesDeregisterCmd) Help() string {
	return `An id that is not in the directory counts as removed: it is named, and the exit code is 0, so that the command may be
repeated.`
}

func (c *servicesDeregisterCmd) Check(p *config.Problems) {
	c.check(p)
	checkIDs(p, c.ID)
}

func (c *servicesDeregisterCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	result, err := a.Deregister(ctx, c.ID, c.Force)
	if err != nil {
		return err
	}
	return c.Print(con.Stdout, result, func(w io.Writer) {
		fmt.Fprintf(w, "removed %d", result.Removed)
		if len(result.Absent) > 0 {
			fmt.Fprintf(w, ", not in the directory: %s", strings.Join(result.Absent, ", "))
		}
		fmt.Fprintf(w, "; epoch %d, index %d\n", result.Epoch, result.Index)
	})
}

type servicesWatchCmd struct {
	Kind   string `help:"Only services of this kind."`
	Resume string `placeholder:"TOKEN" help:"Go on after this token, which -o json prints, without the directory first."`
	OutputFlags
	RemoteFlags
}

func (c *servicesWatchCmd) Check(p *config.Problems) {
	c.check(p)
	checkKind(p, &c.Kind)
}

func (c *servicesWatchCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	for event, err := range a.Watch(ctx, c.Kind, c.Resume) {
		switch {
		case errors.Is(err, gateway.ErrCompacted):
			return WithFix(err, "Watch again without --resume.")
		case err != nil:
			return err
		}
		if c.Output == "json" {
			if err := printJSONLine(con.Stdout, event); err != nil {
				return err
			}
		} else if line := eventLine(event); line != "" {
			if _, err := fmt.Fprintln(con.Stdout, line); err != nil {
				return err
			}
		}
	}
	return nil // interrupted: that is how a watch ends
}

// eventLine is an event for a person; "" for those that only scripts need.
func eventLine(e admin.Event) string {
	s := e.Service
	switch {
	case e.Event == "ready":
		return "watching for changes"
	case s == nil && e.Before == nil:
		return ""
	case s == nil:
		s = e.Before
	}
	mark := map[string]string{"service": " ", "added": "+", "changed": "~", "removed": "-"}[e.Event]
	line := fmt.Sprintf("%s %s %s %s (%s)", mark, s.ID, s.Kind, s.URL, s.Owner)
	if e.Event == "changed" && e.Before.URL != s.URL {
		line += ", was " + e.Before.URL
	}
	if e.Event == "changed" && e.Before.Owner != s.Owner {
		line += ", was owned by " + e.Before.Owner
	}
	return strings.Map(printable, line)
}

func number[T ~uint32 | ~uint64](n T) string { return strconv.FormatUint(uint64(n), 10) }
