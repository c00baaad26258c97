package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/directoryfile"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// readDirectory reads one state of the directory. It contains every write that was acknowledged before the call.
func readDirectory(ctx, limited context.Context, client *gateway.Client) (*fsm.State, error) {
	page, err := client.List(limited, &rollcallv1.ListServicesRequest{PageSize: 1})
	if err != nil {
		return nil, err
	}
	snapshot, leader, err := takeSnapshot(ctx, limited, client)
	if err != nil {
		return nil, err
	}
	state, err := fsm.ReadSnapshot(snapshot)
	if err != nil {
		return nil, fmt.Errorf("read the directory from %s: %w", leader.Node, err)
	}
	if state.Index() < page.GetIndex() {
		return nil, fmt.Errorf("read the directory from %s, which leads no longer: %w", leader.Node, gateway.ErrNotEstablished)
	}
	return state, nil
}

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
	client, limited, end, err := c.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	state, err := readDirectory(ctx, limited, client)
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

// importPlan is the difference that an import makes, and its result, for scripts.
type importPlan struct {
	// Cluster is the cluster that is changed, From the cluster of the file.
	Cluster   string         `json:"cluster"`
	From      string         `json:"from"`
	Added     []ServiceEntry `json:"added"`
	Changed   []changedEntry `json:"changed"`
	Removed   []ServiceEntry `json:"removed"`
	Unchanged int            `json:"unchanged"`
	// Imported reports whether the import was done. Epoch and Index are 0 otherwise.
	Imported bool   `json:"imported"`
	Epoch    uint64 `json:"epoch"`
	Index    uint64 `json:"index"`
}

type changedEntry struct {
	Before ServiceEntry `json:"before"`
	After  ServiceEntry `json:"after"`
}

func planImport(now *fsm.State, f *directoryfile.File) *importPlan {
	p := &importPlan{Cluster: now.Cluster(), From: f.Cluster, Added: []ServiceEntry{}, Changed: []changedEntry{}, Removed: []ServiceEntry{}}
	imported := make(map[string]struct{}, len(f.Records))
	for _, rec := range f.Records {
		id := rec.GetService().GetId()
		imported[id] = struct{}{}
		switch e, ok := now.Get(id); {
		case !ok:
			p.Added = append(p.Added, serviceOf(rec))
		case e.Owner == fsm.OwnerOf(rec.GetOwner()) && proto.Equal(e.Service(), rec.GetService()):
			p.Unchanged++
		default:
			p.Changed = append(p.Changed, changedEntry{serviceOf(e.Record()), serviceOf(rec)})
		}
	}
	for e := range now.All() {
		if _, ok := imported[e.ID]; !ok {
			p.Removed = append(p.Removed, serviceOf(e.Record()))
		}
	}
	return p
}

// list prints each service that changes.
func (p *importPlan) list(w io.Writer) {
	if p.From != p.Cluster {
		fmt.Fprintf(w, "the file is of cluster %s, this is cluster %s\n", p.From, p.Cluster)
	}
	for _, s := range p.Removed {
		fmt.Fprintln(w, WatchEvent{Event: "removed", Before: &s}.line())
	}
	for _, s := range p.Changed {
		fmt.Fprintln(w, WatchEvent{Event: "changed", Before: &s.Before, Service: &s.After}.line())
	}
	for _, s := range p.Added {
		fmt.Fprintln(w, WatchEvent{Event: "added", Service: &s}.line())
	}
	fmt.Fprintln(w, p.summary("to add", "to change", "to remove"))
}

func (p *importPlan) summary(added, changed, removed string) string {
	return fmt.Sprintf("%d %s, %d %s, %d %s, %d unchanged", len(p.Added), added, len(p.Changed), changed, len(p.Removed), removed, p.Unchanged)
}

// Run runs the command.
func (c *ServicesImportCmd) Run(ctx context.Context, con *Console) error {
	file, err := c.readFile(con.Stdin)
	if err != nil {
		return err
	}
	client, limited, end, err := c.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	now, err := readDirectory(ctx, limited, client)
	if err != nil {
		return err
	}
	plan := planImport(now, file)
	if c.DryRun {
		return c.Print(con.Stdout, plan, plan.list)
	}
	if !c.Yes {
		if err := confirm(ctx, con, c.OutputFlags, false, plan.list, "Replace the directory?"); err != nil {
			return err
		}
	}
	resp, err := c.send(ctx, client, file)
	if err != nil {
		return err
	}
	plan.Imported, plan.Epoch, plan.Index = true, resp.GetEpoch(), resp.GetIndex()
	return c.Print(con.Stdout, plan, func(w io.Writer) {
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
	file, err := directoryfile.Read(in)
	if refused, ok := errors.AsType[*directoryfile.Error](err); ok {
		return nil, WithFix(fmt.Errorf("%s, %w", name, err), "%s", refused.Remedy)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(file.Records) == 0 {
		return nil, WithFix(fmt.Errorf("%s has no services, and an import of it would remove every service", name),
			`If that is meant, use "rollcall services deregister".`)
	}
	return file, nil
}

// send imports the file on the leader. While the import was certainly not done, it begins again on the next leader, within
// the timeout. The upload itself has no limit, because its duration depends on the file's size.
func (c *ServicesImportCmd) send(ctx context.Context, client *gateway.Client, f *directoryfile.File) (resp *rollcallv1.ImportServicesResponse, err error) {
	err = c.change(ctx, client, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) (err error) {
		resp, err = upload(ctx, cluster, f, opts...)
		return err
	})
	if _, unknown := errors.AsType[*gateway.UnknownOutcomeError](err); unknown {
		return nil, WithFix(err, `See whether it was done with "rollcall services import --dry-run %s"; to repeat it is harmless.`, c.File)
	}
	return resp, err
}

// upload streams the file to the leader. An error before the last message means that nothing was imported.
func upload(ctx context.Context, cluster rollcallv1.ClusterServiceClient, f *directoryfile.File, opts ...grpc.CallOption) (*rollcallv1.ImportServicesResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := cluster.ImportServices(ctx, opts...)
	if err != nil {
		return nil, err
	}
	complete := true
	for _, part := range importParts(f) {
		if stream.Send(part) != nil {
			complete = false // CloseAndRecv returns the reason
			break
		}
	}
	if complete {
		_ = stream.Send(&rollcallv1.ImportServicesRequest{End: &rollcallv1.ImportEnd{Services: uint64(len(f.Records))}}) // likewise
	}
	resp, err := stream.CloseAndRecv()
	if err != nil && !complete && lostOnTheWay(err, gateway.FromStatus(err)) {
		return nil, fmt.Errorf("%w: %s", gateway.ErrNotEstablished, plain(err))
	}
	return resp, err
}

// importPart is the size of an import's messages, in bytes.
const importPart = 256 << 10

// importParts returns the messages of an import, except the last one, of about importPart bytes each.
func importParts(f *directoryfile.File) []*rollcallv1.ImportServicesRequest {
	part := new(rollcallv1.ImportServicesRequest)
	parts, size := []*rollcallv1.ImportServicesRequest{part}, 0
	next := func(m proto.Message) {
		more := proto.Size(m)
		if size > 0 && size+more > importPart {
			part, size = new(rollcallv1.ImportServicesRequest), 0
			parts = append(parts, part)
		}
		size += more
	}
	for _, g := range f.Gateways {
		next(g)
		part.Owners = append(part.Owners, g)
	}
	for _, rec := range f.Records {
		next(rec)
		part.Records = append(part.Records, rec)
	}
	return parts
}
