package admin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/directoryfile"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// ErrNothingToImport refuses a file without services.
var ErrNothingToImport = errors.New("has no services, and an import of it would remove every service")

// ReadFile reads a file of exported services. It fails with a [directoryfile.Error], [ErrNothingToImport] or an error of in.
func ReadFile(in io.Reader) (*directoryfile.File, error) {
	file, err := directoryfile.Read(in)
	if err == nil && len(file.Records) == 0 {
		return nil, ErrNothingToImport
	}
	return file, err
}

// ReadDirectory reads one state of the directory. It contains every write that was acknowledged before the call.
func (a *Admin) ReadDirectory(ctx context.Context) (*fsm.State, error) {
	limited, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	page, err := a.client.List(limited, &rollcallv1.ListServicesRequest{PageSize: 1})
	if err != nil {
		return nil, err
	}
	snapshot, leader, err := a.Snapshot(ctx)
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

// ImportPlan is the difference that an import makes. Its JSON is for scripts.
type ImportPlan struct {
	// Cluster is the cluster that is changed, From the cluster of the file.
	Cluster   string    `json:"cluster"`
	From      string    `json:"from"`
	Added     []Service `json:"added"`
	Changed   []Changed `json:"changed"`
	Removed   []Service `json:"removed"`
	Unchanged int       `json:"unchanged"`
}

// Changed is a service before and after an import.
type Changed struct {
	Before Service `json:"before"`
	After  Service `json:"after"`
}

// PlanImport compares the directory with a file. It changes nothing.
func (a *Admin) PlanImport(ctx context.Context, f *directoryfile.File) (*ImportPlan, error) {
	now, err := a.ReadDirectory(ctx)
	if err != nil {
		return nil, err
	}
	p := &ImportPlan{Cluster: now.Cluster(), From: f.Cluster, Added: []Service{}, Changed: []Changed{}, Removed: []Service{}}
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
			p.Changed = append(p.Changed, Changed{serviceOf(e.Record()), serviceOf(rec)})
		}
	}
	for e := range now.All() {
		if _, ok := imported[e.ID]; !ok {
			p.Removed = append(p.Removed, serviceOf(e.Record()))
		}
	}
	return p, nil
}

// Import replaces the directory by a file, all or nothing. While that was certainly not done, it begins again on the next leader,
// within the timeout. The upload itself has no limit, because its duration depends on the file's size. It fails with a
// [gateway.UnknownOutcomeError] if the import may be done or not; a repetition is harmless.
func (a *Admin) Import(ctx context.Context, f *directoryfile.File) (resp *rollcallv1.ImportServicesResponse, err error) {
	err = a.change(ctx, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) (err error) {
		resp, err = upload(ctx, cluster, f, opts...)
		return err
	})
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
	if cause, lost := brokenOff(err); lost && !complete {
		return nil, fmt.Errorf("%w: %s", gateway.ErrNotEstablished, cause)
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
