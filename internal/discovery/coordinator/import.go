package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// importVersion is the command version that added imports.
	importVersion = 3
	// messageLimit is how long an import may pause.
	messageLimit = 30 * time.Second
)

// ImportServices replaces all services through the log. It stages each message of the stream by one operation, and
// applies all of them by a last one. Until the last one is proposed, nothing is imported: an error, a lost leadership or
// a caller that leaves changes no service. From then on a lost answer is an unknown outcome. The state machine refuses
// the last operation in another epoch. A repeated import changes nothing that it has changed already.
func (n cluster) ImportServices(stream grpc.ClientStreamingServer[rollcallv1.ImportServicesRequest, rollcallv1.ImportServicesResponse]) error {
	l, r, err := n.leading()
	if err != nil {
		return toStatus(err)
	}
	if !n.importing.TryLock() {
		return status.Error(codes.Aborted, "another import is under way; nothing was imported; import again when it has ended")
	}
	defer n.importing.Unlock()
	if err := n.checkImportVersion(stream.Context(), r); err != nil {
		return toStatus(err)
	}
	im := &serviceImport{node: n.Node, leader: l, id: strings.ToLower(rand.Text())}
	answer, err := im.run(stream.Context(), stream.Recv)
	if err != nil {
		return toStatus(err)
	}
	n.log.Warn("directory imported", "services", im.services, "registered", answer.Registered,
		"unchanged", answer.Unchanged, "removed", answer.Removed, "epoch", answer.Epoch)
	return stream.SendAndClose(&rollcallv1.ImportServicesResponse{
		Epoch: answer.Epoch, Index: answer.Index, Registered: uint32(answer.Registered),
		Unchanged: uint32(answer.Unchanged), Removed: uint32(answer.Removed),
	})
}

// checkImportVersion refuses imports while a voter may be too old for them. It asks the voters first, because a new
// leader has not received their versions yet.
func (n *Node) checkImportVersion(ctx context.Context, r *raft.Raft) error {
	var voters []raft.Server
	for _, s := range without(r.GetConfiguration().Configuration().Servers, n.cfg.ID) {
		if s.Suffrage == raft.Voter {
			voters = append(voters, s)
		}
	}
	facts := n.peers.describe(ctx, voters, peerTimeout)
	for _, s := range voters {
		if facts[s.ID] == nil {
			return status.Errorf(codes.FailedPrecondition,
				"%s does not answer, and a version of it that cannot read imports would stop at one; nothing was imported; start it, or take it out: rollcall cluster remove %s", s.ID, s.ID)
		}
	}
	return n.checkCommandVersion(r, importVersion)
}

// serviceImport is one running import.
type serviceImport struct {
	node   *Node
	leader *leader
	id     string

	parts, services, owners, bytes int
	lastID                         string
}

// errImportPaused ends an import whose caller sends nothing.
var errImportPaused = status.Errorf(codes.DeadlineExceeded, "nothing more of the import came for %v; nothing was imported", messageLimit)

// run stages all messages and applies the import. If it fails before, it drops the staged parts.
func (im *serviceImport) run(ctx context.Context, recv func() (*rollcallv1.ImportServicesRequest, error)) (fsm.Answer, error) {
	if err := im.receive(ctx, recv); err != nil {
		im.drop(ctx)
		return fsm.Answer{}, err
	}
	answer, err := im.finish(ctx, true)
	_, stale := errors.AsType[*fsm.StaleEpochError](err)
	_, unknown := errors.AsType[*unknownError](err)
	switch {
	case stale:
		return fsm.Answer{}, im.lostEpoch()
	case err != nil && !unknown: // such as a full queue
		im.drop(ctx)
	}
	return answer, err
}

// receive stages messages until the last one.
func (im *serviceImport) receive(ctx context.Context, recv func() (*rollcallv1.ImportServicesRequest, error)) error {
	for {
		req, err := receiveMessage(recv, im.leader.ctx.Done())
		switch {
		case errors.Is(err, io.EOF):
			return status.Errorf(codes.InvalidArgument, "the stream ended after %d services, without its last message; nothing was imported", im.services)
		case err != nil:
			return err
		case req.End != nil:
			return im.checkEnd(req)
		}
		op, err := im.check(req)
		if err != nil {
			return err
		}
		if err := im.stage(ctx, op); err != nil {
			return err
		}
	}
}

// receiveMessage receives a message of the stream. It returns errImportPaused after messageLimit, and
// errNotEstablished if ended is closed first. Returning from the handler cancels a blocked recv.
func receiveMessage(recv func() (*rollcallv1.ImportServicesRequest, error), ended <-chan struct{}) (*rollcallv1.ImportServicesRequest, error) {
	type message struct {
		req *rollcallv1.ImportServicesRequest
		err error
	}
	received := make(chan message, 1)
	go func() {
		req, err := recv()
		received <- message{req, err}
	}()
	limit := time.NewTimer(messageLimit)
	defer limit.Stop()
	select {
	case m := <-received:
		return m.req, m.err
	case <-ended:
		return nil, errNotEstablished
	case <-limit.C:
		return nil, errImportPaused
	}
}

// stage commits one part. An unknown outcome is a refusal, because the import is not applied.
func (im *serviceImport) stage(ctx context.Context, op *rollcallv1.StageImportOperation) error {
	im.parts++ // also of an unknown outcome: drop must follow
	_, err := im.propose(ctx, &rollcallv1.Operation{Kind: &rollcallv1.Operation_StageImport{StageImport: op}})
	_, unknown := errors.AsType[*unknownError](err)
	_, stale := errors.AsType[*fsm.StaleEpochError](err)
	if unknown || stale {
		return im.lostEpoch()
	}
	return err
}

// finish applies or drops what is staged.
func (im *serviceImport) finish(ctx context.Context, apply bool) (fsm.Answer, error) {
	return im.propose(ctx, &rollcallv1.Operation{Kind: &rollcallv1.Operation_FinishImport{FinishImport: &rollcallv1.FinishImportOperation{
		Epoch: im.leader.Epoch, Import: im.id, Parts: uint32(im.parts), Apply: apply,
	}}})
}

// drop removes the staged parts. If it fails, they stay until the next import or epoch.
func (im *serviceImport) drop(ctx context.Context) {
	if im.parts == 0 || im.leader.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	if _, err := im.finish(ctx, false); err != nil {
		im.node.log.Debug("staged import not dropped", "err", err)
	}
}

func (im *serviceImport) propose(ctx context.Context, op *rollcallv1.Operation) (fsm.Answer, error) {
	result, err := im.leader.proposer.propose(ctx, op, func() {})
	return result.Answer, err
}

// lostEpoch returns the refusal after the epoch has ended, or the caller has left.
func (im *serviceImport) lostEpoch() error {
	if _, err := im.node.established(); err != nil {
		return err
	}
	return errNotEstablished
}

// check validates a message and returns its operation.
func (im *serviceImport) check(req *rollcallv1.ImportServicesRequest) (*rollcallv1.StageImportOperation, error) {
	size := proto.Size(req)
	im.services += len(req.Records)
	im.owners += len(req.Owners)
	im.bytes += size
	switch {
	case size > rollcallv1.MaxImportPartBytes:
		return nil, importTooLarge("a message of an import has %d bytes, at most %d are allowed", size, rollcallv1.MaxImportPartBytes)
	case im.services > rollcallv1.MaxImportServices || im.owners > rollcallv1.MaxImportServices:
		return nil, importTooLarge("the import has %d services and %d gateways so far, at most %d are allowed", im.services, im.owners, rollcallv1.MaxImportServices)
	case im.bytes > rollcallv1.MaxImportBytes:
		return nil, importTooLarge("the import has %d bytes so far, at most %d are allowed", im.bytes, rollcallv1.MaxImportBytes)
	}
	op := &rollcallv1.StageImportOperation{Epoch: im.leader.Epoch, Import: im.id, Part: uint32(im.parts)}
	var vs []rollcallv1.Violation
	add := func(field, description string) {
		vs = append(vs, rollcallv1.Violation{Field: field, Description: description})
	}
	if len(req.Records) == 0 && len(req.Owners) == 0 {
		add("records", "is empty; send at least one service or gateway")
	}
	for i, o := range req.Owners {
		field := fmt.Sprintf("owners[%d]", i)
		if o.GetOwner().GetKind() != rollcallv1.OwnerKind_OWNER_KIND_GATEWAY {
			add(field+".owner.kind", "must be OWNER_KIND_GATEWAY: only a gateway's incarnation is valid in another cluster")
		} else if problem := checkOwner(o.Owner); problem != "" {
			add(field+".owner", problem)
		}
		// Only fields that every voter knows are passed on.
		op.Owners = append(op.Owners, &rollcallv1.ImportedOwner{Owner: fsm.OwnerOf(o.GetOwner()).Proto(), Incarnation: o.GetIncarnation()})
	}
	for i, rec := range req.Records {
		field := fmt.Sprintf("records[%d]", i)
		s := rec.GetService()
		for _, v := range s.ValidateStored() {
			add(field+".service."+v.Field, v.Description)
		}
		if s.GetId() <= im.lastID {
			add(field+".service.id", fmt.Sprintf("%q follows %q; the ids of an import must be in ascending order", s.GetId(), im.lastID))
		}
		im.lastID = max(im.lastID, s.GetId())
		if problem := checkOwner(rec.GetOwner()); problem != "" {
			add(field+".owner", problem)
		}
		encoded, err := fsm.EncodeService(s)
		if err != nil {
			return nil, fmt.Errorf("encode service %s: %w", s.GetId(), err)
		}
		op.Services = append(op.Services, &rollcallv1.ImportedService{Service: encoded, Owner: fsm.OwnerOf(rec.GetOwner()).Proto()})
	}
	if len(vs) > 0 {
		return nil, &invalidError{vs}
	}
	return op, nil
}

// checkEnd validates the last message.
func (im *serviceImport) checkEnd(req *rollcallv1.ImportServicesRequest) error {
	var vs []rollcallv1.Violation
	if len(req.Records) > 0 || len(req.Owners) > 0 {
		vs = append(vs, rollcallv1.Violation{Field: "end", Description: "must stand alone in the last message"})
	}
	if count := req.End.Services; count != uint64(im.services) {
		vs = append(vs, rollcallv1.Violation{Field: "end.services", Description: fmt.Sprintf("is %d, but the stream has %d services", count, im.services)})
	}
	if im.services == 0 {
		vs = append(vs, rollcallv1.Violation{Field: "end.services", Description: "is 0; an import must not remove every service; deregister them instead"})
	}
	if len(vs) > 0 {
		return &invalidError{vs}
	}
	return nil
}

// checkOwner returns the fault of an owner, or "".
func checkOwner(o *rollcallv1.Owner) string {
	switch o.GetKind() {
	case rollcallv1.OwnerKind_OWNER_KIND_GATEWAY:
		if err := rollcallv1.CheckDNSLabel(o.GetId()); err != nil {
			return "id " + err.Error()
		}
	case rollcallv1.OwnerKind_OWNER_KIND_STATIC, rollcallv1.OwnerKind_OWNER_KIND_OPERATOR:
		if o.GetId() != "" {
			return "must have no id; only a gateway has one"
		}
	default:
		return "must be a gateway, the static fleet or the operator"
	}
	return ""
}

func importTooLarge(format string, args ...any) error {
	return status.Errorf(codes.ResourceExhausted, format+"; nothing was imported", args...)
}
