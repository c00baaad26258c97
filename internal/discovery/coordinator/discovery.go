package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// pageBytes is the maximum size of a list page, below the default limit of gRPC clients.
	pageBytes = 3 << 20
	// partRecords is the maximum number of records in one message of a watched snapshot or change.
	partRecords = 1000
	// bookmarkPeriod is how often a stream sends a bookmark, as keepalive and progress, independent of other messages.
	bookmarkPeriod = 10 * time.Second
	// sendLimit is how long a reader may take for one message before the stream is closed.
	sendLimit = 10 * time.Second
)

// discovery serves DiscoveryService.
type discovery struct {
	rollcallv1.UnimplementedDiscoveryServiceServer
	*Node
}

func (n discovery) Ping(context.Context, *rollcallv1.PingRequest) (*rollcallv1.PingResponse, error) {
	if l := n.currentLeader(); l != nil {
		return &rollcallv1.PingResponse{Cluster: l.Cluster, Epoch: l.Epoch, Node: n.cfg.ID, Leader: n.leaderHint()}, nil
	}
	s := n.machine.State()
	return &rollcallv1.PingResponse{Cluster: s.Cluster(), Epoch: s.Epoch(), Node: n.cfg.ID, Leader: n.leaderHint()}, nil
}

func (n discovery) RegisterServices(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
	a, err := n.registerRequest(ctx, req)
	if err != nil {
		return nil, toStatus(err)
	}
	return &rollcallv1.RegisterServicesResponse{
		Epoch: a.Epoch, Index: a.Index,
		Registered: uint32(a.Registered), Unchanged: uint32(a.Unchanged), Removed: uint32(a.Removed), Yielded: uint32(a.Yielded),
	}, nil
}

func (n discovery) DeregisterServices(ctx context.Context, req *rollcallv1.DeregisterServicesRequest) (*rollcallv1.DeregisterServicesResponse, error) {
	a, err := n.deregisterRequest(ctx, req)
	if err != nil {
		return nil, toStatus(err)
	}
	return &rollcallv1.DeregisterServicesResponse{Epoch: a.Epoch, Index: a.Index, Removed: uint32(a.Removed)}, nil
}

func (n discovery) ListServices(ctx context.Context, req *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	var vs []rollcallv1.Violation
	if len(req.Ids) > rollcallv1.MaxServicesPerCall {
		vs = append(vs, rollcallv1.Violation{Field: "ids", Description: fmt.Sprintf("has %d ids, at most %d are allowed", len(req.Ids), rollcallv1.MaxServicesPerCall)})
	}
	if req.PageSize > rollcallv1.MaxServicesPerCall {
		vs = append(vs, rollcallv1.Violation{Field: "page_size", Description: fmt.Sprintf("is %d, at most %d is allowed", req.PageSize, rollcallv1.MaxServicesPerCall)})
	}
	vs = append(vs, checkLabel("kind", req.Kind)...)
	// A token is the first id of the next page.
	vs = append(vs, checkLabel("page_token", req.PageToken)...)
	if len(vs) > 0 {
		return nil, toStatus(&invalidError{vs})
	}
	if !req.Stale {
		l, err := n.established()
		if err != nil {
			return nil, toStatus(err)
		}
		if err := l.confirm(ctx, n.Node); err != nil {
			return nil, toStatus(err)
		}
	}
	return list(n.machine.State(), req), nil
}

// checkLabel refuses a field that is neither empty nor a DNS label, the format of kinds and ids.
func checkLabel(field, value string) []rollcallv1.Violation {
	if value == "" {
		return nil
	}
	if err := rollcallv1.CheckDNSLabel(value); err != nil {
		return []rollcallv1.Violation{{Field: field, Description: err.Error()}}
	}
	return nil
}

// list returns one page of a state.
func list(s *fsm.State, req *rollcallv1.ListServicesRequest) *rollcallv1.ListServicesResponse {
	resp := &rollcallv1.ListServicesResponse{Epoch: s.Epoch(), Index: s.Index(), Cluster: s.Cluster()}
	entries := s.From(req.PageToken)
	if len(req.Ids) > 0 {
		entries = selectByID(s, req.Ids, req.PageToken)
	}
	limit := int(req.PageSize)
	if limit == 0 {
		limit = rollcallv1.MaxServicesPerCall
	}
	size := 0
	for e := range entries {
		if req.Kind != "" && e.Kind != req.Kind {
			continue
		}
		if len(resp.Records) == limit || size > pageBytes {
			resp.NextPageToken = e.ID
			break
		}
		resp.Records = append(resp.Records, e.Record())
		size += e.Size() + 64
	}
	return resp
}

// selectByID iterates over the ids that are in the directory, each once and in order, beginning with the first not
// below from.
func selectByID(s *fsm.State, ids []string, from string) iter.Seq[*fsm.Entry] {
	return func(yield func(*fsm.Entry) bool) {
		for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
			if e, ok := s.Get(id); ok && id >= from && !yield(e) {
				return
			}
		}
	}
}

func (n discovery) GetStatus(context.Context, *rollcallv1.GetStatusRequest) (*rollcallv1.GetStatusResponse, error) {
	s, err := n.leaderStatus()
	return s, toStatus(err)
}

func (n discovery) WatchServices(req *rollcallv1.WatchServicesRequest, stream grpc.ServerStreamingServer[rollcallv1.WatchServicesResponse]) error {
	if vs := checkLabel("kind", req.Kind); len(vs) > 0 {
		return toStatus(&invalidError{vs})
	}
	w := &watch{node: n.Node, kind: req.Kind, stream: stream}
	return toStatus(w.run(req.ResumeToken))
}

// watch is the stream of one reader.
type watch struct {
	node    *Node
	kind    string
	stream  grpc.ServerStreamingServer[rollcallv1.WatchServicesResponse]
	cluster string
}

func (w *watch) run(resume string) error {
	ctx, cancel := context.WithCancelCause(w.stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(w.node.stopping, func() { cancel(errStopping) })()
	if resume != "" {
		feed, index, err := w.resume(resume)
		if err != nil {
			return err
		}
		return w.follow(ctx, feed, index)
	}
	state, feed := w.node.machine.Watch()
	if w.cluster = state.Cluster(); w.cluster == "" {
		return errNotEstablished
	}
	if err := w.sendSnapshot(ctx, state); err != nil {
		return err
	}
	return w.follow(ctx, feed, state.Index())
}

func (w *watch) token(index uint64) string { return w.cluster + "/" + strconv.FormatUint(index, 10) }

// resume returns the feed after a token.
func (w *watch) resume(token string) (*fsm.Feed, uint64, error) {
	cluster, rest, ok := strings.Cut(token, "/")
	index, err := strconv.ParseUint(rest, 10, 64)
	if !ok || err != nil {
		return nil, 0, &invalidError{[]rollcallv1.Violation{{Field: "resume_token", Description: "is not one that a watch gave"}}}
	}
	state := w.node.machine.State()
	switch w.cluster = state.Cluster(); {
	case w.cluster == "":
		return nil, 0, errNotEstablished
	case cluster != w.cluster:
		return nil, 0, &foreignClusterError{expected: cluster, actual: w.cluster}
	case index > state.Index():
		return nil, 0, errNotEstablished // this replica is behind the state that the reader has received
	}
	feed, err := w.node.machine.WatchFrom(index)
	return feed, index, err
}

func (w *watch) sendSnapshot(ctx context.Context, s *fsm.State) error {
	var part []*rollcallv1.ServiceRecord
	flush := func() error {
		if len(part) == 0 {
			return nil
		}
		err := w.send(ctx, &rollcallv1.WatchServicesResponse{Event: &rollcallv1.WatchServicesResponse_Snapshot{
			Snapshot: &rollcallv1.SnapshotPart{Records: part},
		}})
		part = nil
		return err
	}
	size := 0
	for e := range s.All() {
		if w.kind != "" && e.Kind != w.kind {
			continue
		}
		part = append(part, e.Record())
		if size += e.Size(); len(part) == partRecords || size > pageBytes {
			size = 0
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	return w.send(ctx, &rollcallv1.WatchServicesResponse{
		Token: w.token(s.Index()), Event: &rollcallv1.WatchServicesResponse_SnapshotEnd{SnapshotEnd: &rollcallv1.SnapshotEnd{}},
	})
}

// follow streams the changes after the index last, and a bookmark every bookmarkPeriod.
func (w *watch) follow(ctx context.Context, feed *fsm.Feed, last uint64) error {
	idle := time.NewTimer(bookmarkPeriod)
	defer idle.Stop()
	for {
		select {
		case <-feed.Ready():
			changes, err := feed.Next(ctx)
			if err != nil {
				return err
			}
			last = changes.Index
			if err := w.sendChanges(ctx, changes); err != nil {
				return err
			}
		case <-idle.C:
			idle.Reset(bookmarkPeriod)
			err := w.send(ctx, &rollcallv1.WatchServicesResponse{
				Token: w.token(last), Event: &rollcallv1.WatchServicesResponse_Bookmark{Bookmark: &rollcallv1.Bookmark{}},
			})
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sendChanges streams the changes of one command, a message at a time, because an import has up to two million. Only the
// last message has the token, so that a reader that resumes gets all of them again or none.
func (w *watch) sendChanges(ctx context.Context, c fsm.Changes) error {
	var part []*rollcallv1.Change
	size := 0
	flush := func(token string) error {
		resp := &rollcallv1.WatchServicesResponse{
			Token: token, Event: &rollcallv1.WatchServicesResponse_Changes{Changes: &rollcallv1.Changes{Changes: part}},
		}
		part, size = nil, 0
		return w.send(ctx, resp)
	}
	for _, ch := range c.Changes {
		if w.kind != "" && (ch.Before == nil || ch.Before.Kind != w.kind) && (ch.After == nil || ch.After.Kind != w.kind) {
			continue
		}
		change := new(rollcallv1.Change)
		if ch.Before != nil {
			change.Before = ch.Before.Record()
		}
		if ch.After != nil {
			change.After = ch.After.Record()
		}
		if len(part) == partRecords || size >= pageBytes/2 {
			if err := flush(""); err != nil {
				return err
			}
		}
		part = append(part, change)
		size += proto.Size(change)
	}
	if len(part) == 0 {
		return nil
	}
	return flush(w.token(c.Index))
}

// errSlowReader ends the stream of a slow reader, because changes for it must not accumulate without limit.
var errSlowReader = fmt.Errorf("the reader took none of the stream for %v: %w", sendLimit, fsm.ErrCompacted)

func (w *watch) send(ctx context.Context, resp *rollcallv1.WatchServicesResponse) error {
	return send(ctx, w.stream, resp)
}

// send writes one message, within sendLimit. Returning from the handler cancels a blocked Send. The stream owns the
// message and everything that it references from then on.
func send[M any](ctx context.Context, stream grpc.ServerStreamingServer[M], resp *M) error {
	done := make(chan error, 1)
	go func() { done <- stream.Send(resp) }()
	limit := time.NewTimer(sendLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-limit.C:
		return errSlowReader
	}
}

// leaderStatus returns this node's director status. On another node it returns a refusal with the leader.
func (n *Node) leaderStatus() (*rollcallv1.GetStatusResponse, error) {
	l, err := n.established()
	if err != nil {
		return nil, err
	}
	s := n.cfg.Status(l.Epoch)
	if s == nil {
		s = n.idleStatus(l)
	}
	s.RelayerCount = uint32(n.cfg.RelayerCount)
	if r := n.raft.Load(); r != nil {
		s.Notes = append(s.Notes, n.notes(r)...)
	}
	return s, nil
}

// idleStatus returns the status while the leader's work is not running.
func (n *Node) idleStatus(l *leader) *rollcallv1.GetStatusResponse {
	problem := "the leader's work has not begun"
	if failure := l.failure.Load(); failure != nil {
		problem = "the leader's work failed: " + (*failure).Error()
	}
	s := &rollcallv1.GetStatusResponse{
		Cluster: l.Cluster, Epoch: l.Epoch, Leader: n.cfg.ID, Director: rollcallv1.DirectorState_DIRECTOR_STATE_RECOVERING,
		Mirror: &rollcallv1.MirrorStatus{Error: problem},
	}
	for e := range n.machine.State().All() {
		s.Services = append(s.Services, &rollcallv1.ServiceStatus{Id: e.ID, Kind: e.Kind, Url: e.URL(), Verdict: rollcallv1.Verdict_VERDICT_UNKNOWN})
	}
	return s
}

// Ready returns nil if the node can serve the cluster: it has joined, has its intended vote, and leads or has a
// leader. A node without its vote is not ready. Otherwise a rolling restart would continue with the next node and lose
// the quorum.
func (n *Node) Ready() error {
	if n.raft.Load() == nil {
		return errors.New("not part of a cluster yet")
	}
	if n.isRejoining() {
		return errors.New("its vote is not given yet")
	}
	if n.leaderHint() == nil {
		return errors.New("no leader is known")
	}
	return nil
}
