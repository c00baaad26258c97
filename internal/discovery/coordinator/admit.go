package coordinator

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/platform/pki"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// write is a caller's request to change the directory.
type write interface {
	proto.Message
	GetWriter() *rollcallv1.Writer
	GetForce() bool
}

// admit validates a write of count entries: its size, the caller's role, its fields, and its epoch.
// check returns the faults of the entries. admit returns the fence of the write, whose sequence the state machine checks. An
// error has all faults of the fields.
func admit(ctx context.Context, l *leader, req write, count int, check func() []rollcallv1.Violation) (*rollcallv1.WriteFence, error) {
	if size := proto.Size(req); count > rollcallv1.MaxServicesPerCall || size > rollcallv1.MaxBytesPerCall {
		return nil, &tooLargeError{count, size}
	}
	w := req.GetWriter()
	if err := authorizeWriter(ctx, w); err != nil {
		return nil, err
	}
	vs := append(checkWriter(w), check()...)
	if req.GetForce() && w.GetOwner().GetKind() != rollcallv1.OwnerKind_OWNER_KIND_OPERATOR {
		vs = append(vs, rollcallv1.Violation{Field: "force", Description: "is for operators only"})
	}
	if len(vs) > 0 {
		return nil, &invalidError{vs}
	}
	if w.Epoch != 0 && w.Epoch != l.Epoch {
		return nil, &fsm.StaleEpochError{Epoch: l.Epoch}
	}
	// The owner is copied field by field: an unknown field of a newer caller must not reach the log, where it ends every node.
	return &rollcallv1.WriteFence{Owner: fsm.OwnerOf(w.Owner).Proto(), Incarnation: w.Incarnation, Seq: w.Seq, Epoch: l.Epoch}, nil
}

// authorizeWriter lets an operator's certificate write as an operator, which may take entries of other owners. A
// gateway's certificate may write only as a gateway.
func authorizeWriter(ctx context.Context, w *rollcallv1.Writer) error {
	allowed := []pki.Role{pki.RoleCoordinator, pki.RoleOperator}
	if w.GetOwner().GetKind() != rollcallv1.OwnerKind_OWNER_KIND_OPERATOR {
		allowed = append(allowed, pki.RoleGateway)
	}
	if !clusterport.HasRole(ctx, allowed...) {
		return status.Errorf(codes.PermissionDenied, "to write as %v takes a certificate of one of the roles %v", w.GetOwner().GetKind(), allowed)
	}
	return nil
}

// checkWriter returns the faults of a writer.
func checkWriter(w *rollcallv1.Writer) (vs []rollcallv1.Violation) {
	add := func(field, description string) {
		vs = append(vs, rollcallv1.Violation{Field: "writer." + field, Description: description})
	}
	switch w.GetOwner().GetKind() {
	case rollcallv1.OwnerKind_OWNER_KIND_GATEWAY:
		if err := rollcallv1.CheckDNSLabel(w.Owner.Id); err != nil {
			add("owner.id", err.Error())
		}
		if w.Incarnation == 0 {
			add("incarnation", "is 0; a gateway's grows with each of its starts, such as its start time")
		}
		if w.Seq == 0 {
			add("seq", "is 0; a gateway's grows with each write, from 1")
		}
	case rollcallv1.OwnerKind_OWNER_KIND_OPERATOR:
		if w.Owner.Id != "" {
			add("owner.id", "must be empty for an operator")
		}
		if (w.Incarnation == 0) != (w.Seq == 0) {
			add("seq", "and incarnation must both be set, for a fenced write, or both be 0")
		}
	default:
		add("owner.kind", "must be OWNER_KIND_GATEWAY or OWNER_KIND_OPERATOR")
	}
	return vs
}

// checkRegistration returns the faults of each service, and of the batch: repeated ids, and an unintended removal. The rules of a
// service's kind do not apply to what its owner has in the directory already, because a gateway of an earlier version would send its full
// set again without the refused services, which removes them.
func checkRegistration(state *fsm.State, req *rollcallv1.RegisterServicesRequest) (vs []rollcallv1.Violation) {
	at := make(map[string]int, len(req.Services))
	for i, s := range req.Services {
		faults := s.Validate()
		if e, ok := state.Get(s.GetId()); len(faults) > 0 && ok && e.Owner == fsm.OwnerOf(req.GetWriter().GetOwner()) &&
			e.Kind == s.GetKind() && e.URL() == s.GetWorkerRef().GetUrl() {
			faults = s.ValidateStored()
		}
		for _, v := range faults {
			vs = append(vs, rollcallv1.Violation{Field: fmt.Sprintf("services[%d].%s", i, v.Field), Description: v.Description})
		}
		if first, ok := at[s.GetId()]; ok {
			vs = append(vs, rollcallv1.Violation{
				Field:       fmt.Sprintf("services[%d].id", i),
				Description: fmt.Sprintf("%q is in services[%d] already", s.GetId(), first),
			})
			continue
		}
		at[s.GetId()] = i
	}
	switch {
	case len(req.Services) > 0, req.FullSet && req.AllowEmpty:
	case req.FullSet:
		vs = append(vs, rollcallv1.Violation{
			Field: "services", Description: "is an empty full set, which removes all that the owner defines; set allow_empty if that is meant",
		})
	default:
		vs = append(vs, rollcallv1.Violation{Field: "services", Description: "is empty; name at least one service"})
	}
	return vs
}

// checkIDs returns the faults of each id, and of the batch.
func checkIDs(ids []string) (vs []rollcallv1.Violation) {
	seen := make(map[string]int, len(ids))
	for i, id := range ids {
		field := fmt.Sprintf("ids[%d]", i)
		if err := rollcallv1.CheckDNSLabel(id); err != nil {
			vs = append(vs, rollcallv1.Violation{Field: field, Description: err.Error()})
		}
		if first, ok := seen[id]; ok {
			vs = append(vs, rollcallv1.Violation{Field: field, Description: fmt.Sprintf("%q is in ids[%d] already", id, first)})
		} else {
			seen[id] = i
		}
	}
	if len(ids) == 0 {
		vs = append(vs, rollcallv1.Violation{Field: "ids", Description: "is empty; name at least one service"})
	}
	return vs
}
