package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// refused is a service that the directory refused, in the form in which it was offered.
type refused struct {
	Refusal
	service *rollcallv1.Service
}

// sync updates the directory from the source. It writes a full set if one is due or the epoch has changed since the
// last one, and otherwise only the changes. It waits for a leader until ctx ends, and reports whether the set written
// was full.
func (g *Gateway) sync(ctx context.Context, due bool) (full bool, err error) {
	// The leader is found before the source is pulled, so that this leader receives the current set.
	leader, err := g.client.Leader(ctx)
	if err != nil {
		return false, err
	}
	set, err := g.cfg.Source.Services(ctx)
	if err != nil {
		return false, fmt.Errorf("ask the source: %w", err)
	}
	full = due || g.epoch != leader.Epoch
	wanted, err := byID(set.Services)
	if err != nil {
		return false, err
	}
	held, err := byID(set.NotReady)
	if err != nil {
		return false, err
	}
	var gone []string
	for id := range g.registered {
		if wanted[id] == nil && held[id] == nil {
			gone = append(gone, id)
		}
	}
	slices.Sort(gone)
	g.forgetRefused(wanted)
	if set.Complete && (full || len(gone) > 0) {
		if err := g.keepHeld(ctx, held, wanted); err != nil {
			return false, err
		}
		return true, g.registerAll(ctx, wanted, true)
	}
	if len(gone) > 0 {
		if err := g.remove(ctx, gone); err != nil {
			return false, err
		}
	}
	if !full {
		maps.DeleteFunc(wanted, func(id string, s *rollcallv1.Service) bool {
			return proto.Equal(s, g.registered[id]) || proto.Equal(s, g.refused[id].service)
		})
	}
	if len(wanted) > 0 {
		if err := g.registerAll(ctx, wanted, false); err != nil {
			return false, err
		}
	}
	if full {
		g.epoch = leader.Epoch // an incomplete source cannot write a fuller set
	}
	return full, nil
}

// byID returns an error if two services share an id.
func byID(services []*rollcallv1.Service) (map[string]*rollcallv1.Service, error) {
	m := make(map[string]*rollcallv1.Service, len(services))
	for _, s := range services {
		if m[s.GetId()] != nil {
			return nil, fmt.Errorf("the source defines %q twice", s.GetId())
		}
		m[s.GetId()] = s
	}
	return m, nil
}

// keepHeld adds to wanted the services of held that this gateway already has in the directory. A service that an
// earlier run registered must not be removed because it is down while this run starts.
func (g *Gateway) keepHeld(ctx context.Context, held, wanted map[string]*rollcallv1.Service) error {
	if len(held) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(held))
	for ids := range slices.Chunk(ids, rollcallv1.MaxServicesPerCall) {
		for record, err := range g.client.ListAll(ctx, &rollcallv1.ListServicesRequest{Ids: ids}) {
			if err != nil {
				return fmt.Errorf("look for services that are held back: %w", err)
			}
			if ownerOf(record.GetOwner()) == g.owner() {
				id := record.GetService().GetId()
				wanted[id] = held[id]
			}
		}
	}
	return nil
}

// registerAll writes services, without those that the directory refuses individually. It reports the refused ones; the
// next full set offers them again.
func (g *Gateway) registerAll(ctx context.Context, services map[string]*rollcallv1.Service, fullSet bool) error {
	began := time.Now()
	refusals := map[string]refused{}
	batch := slices.SortedFunc(maps.Values(services), func(a, b *rollcallv1.Service) int { return strings.Compare(a.GetId(), b.GetId()) })
	for {
		req := &rollcallv1.RegisterServicesRequest{
			Writer: g.writer(), Services: batch, FullSet: fullSet,
			// The source is complete, or the directory refuses all of its services.
			AllowEmpty: fullSet && len(batch) == 0,
		}
		err := checkSize(req)
		var resp *rollcallv1.RegisterServicesResponse
		if err == nil {
			resp, err = g.client.Register(ctx, req)
		}
		if err == nil {
			g.accepted = true
			g.commitLocal(batch, fullSet, refusals)
			g.reportWrite(Write{
				Epoch: resp.GetEpoch(), Index: resp.GetIndex(), FullSet: fullSet,
				Registered: resp.GetRegistered(), Unchanged: resp.GetUnchanged(), Removed: resp.GetRemoved(),
				Took: time.Since(began),
			})
			return nil
		}
		if err := g.handleSuperseded(err); err != nil {
			rest := dropRefused(batch, err, refusals)
			if len(rest) == len(batch) {
				return err
			}
			// An update without its refused services may be empty, and then needs no write.
			if batch = rest; len(batch) == 0 && !fullSet {
				g.commitLocal(nil, false, refusals)
				return nil
			}
		}
	}
}

// checkSize returns an error for a batch too large for one write, before it is sent.
func checkSize(req *rollcallv1.RegisterServicesRequest) error {
	n, size := len(req.GetServices()), proto.Size(req)
	if n <= rollcallv1.MaxServicesPerCall && size <= rollcallv1.MaxBytesPerCall {
		return nil
	}
	return fmt.Errorf("a gateway's services are one write; split them across several gateway ids: %w", &TooLargeError{
		Services: uint64(n), MaxServices: rollcallv1.MaxServicesPerCall,
		Bytes: uint64(size), MaxBytes: rollcallv1.MaxBytesPerCall,
	})
}

// remove deregisters ids. It skips ids that another owner has registered since.
func (g *Gateway) remove(ctx context.Context, ids []string) error {
	began := time.Now()
	rest := ids
	for len(rest) > 0 {
		resp, err := g.client.Deregister(ctx, &rollcallv1.DeregisterServicesRequest{Writer: g.writer(), Ids: rest})
		if err == nil {
			g.accepted = true
			g.reportWrite(Write{Epoch: resp.GetEpoch(), Index: resp.GetIndex(), Removed: resp.GetRemoved(), Took: time.Since(began)})
			break
		}
		if err := g.handleSuperseded(err); err != nil {
			conflict, ok := errors.AsType[*ConflictError](err)
			if !ok || len(conflict.Conflicts) == 0 {
				return err
			}
			rest = slices.DeleteFunc(slices.Clone(rest), func(id string) bool {
				return slices.ContainsFunc(conflict.Conflicts, func(c Conflict) bool { return c.ID == id })
			})
		}
	}
	for _, id := range ids {
		delete(g.registered, id)
	}
	return nil
}

func (g *Gateway) owner() Owner { return Owner{rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, g.cfg.ID} }

// writer returns the writer of the next write. The client fills in the epoch.
func (g *Gateway) writer() *rollcallv1.Writer {
	g.seq++
	return &rollcallv1.Writer{
		Owner:       &rollcallv1.Owner{Kind: g.owner().Kind, Id: g.cfg.ID},
		Incarnation: g.incarnation, Seq: g.seq,
	}
}

func (g *Gateway) setIncarnation(n uint64) {
	g.incarnation, g.seq = n, 0
	g.update(func(s *Status) { s.Incarnation = n })
}

// handleSuperseded returns nil if the caller may retry the write with a higher incarnation. If the first write is
// superseded, the clock went back since the gateway's last start. If a later write is, another process uses the id.
func (g *Gateway) handleSuperseded(err error) error {
	superseded, ok := errors.AsType[*SupersededError](err)
	if reused, same := errors.AsType[*SequenceReusedError](err); same {
		// A gateway never reuses a number, so another process runs as the same incarnation.
		superseded, ok = &SupersededError{Owner: reused.Owner, Incarnation: reused.Incarnation, Seq: reused.Seq}, true
	}
	if !ok {
		if _, conflict := errors.AsType[*ConflictError](err); conflict {
			g.accepted = true // it passed the fence
		}
		return err
	}
	if g.accepted || g.incarnationBumped {
		return &ClaimedError{ID: g.cfg.ID, Incarnation: superseded.Incarnation}
	}
	g.incarnationBumped = true
	g.log.Warn("an earlier start of this gateway had a later clock; continuing as the incarnation after it",
		"incarnation", g.incarnation, "known", superseded.Incarnation)
	g.setIncarnation(superseded.Incarnation + 1)
	return nil
}

// dropRefused returns batch without the services that err refuses individually, and adds those to refusals.
func dropRefused(batch []*rollcallv1.Service, err error, refusals map[string]refused) []*rollcallv1.Service {
	refuse := func(i int, owner Owner, reason string) {
		if i >= 0 && i < len(batch) {
			id := batch[i].GetId()
			refusals[id] = refused{Refusal{ID: id, Owner: owner, Reason: reason}, batch[i]}
		}
	}
	if conflict, ok := errors.AsType[*ConflictError](err); ok {
		for _, c := range conflict.Conflicts {
			refuse(c.Index, c.Owner, "owned by "+c.Owner.String())
		}
	}
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		for _, v := range invalid.Violations {
			refuse(v.Index, Owner{}, v.String())
		}
	}
	return slices.DeleteFunc(slices.Clone(batch), func(s *rollcallv1.Service) bool {
		_, ok := refusals[s.GetId()]
		return ok
	})
}

// commitLocal records the registered and refused services after a write.
func (g *Gateway) commitLocal(batch []*rollcallv1.Service, fullSet bool, refusals map[string]refused) {
	before := maps.Clone(g.refused)
	if fullSet {
		clear(g.registered)
		clear(g.refused)
	}
	for _, s := range batch {
		g.registered[s.GetId()] = s
		delete(g.refused, s.GetId())
	}
	for id, r := range refusals {
		delete(g.registered, id)
		g.refused[id] = r
	}
	g.reportRefused(before)
}

// forgetRefused deletes the refusals of services that the source no longer defines.
func (g *Gateway) forgetRefused(wanted map[string]*rollcallv1.Service) {
	before := maps.Clone(g.refused)
	maps.DeleteFunc(g.refused, func(id string, _ refused) bool { return wanted[id] == nil })
	g.reportRefused(before)
}

// reportRefused reports the changes of the refusals since before.
func (g *Gateway) reportRefused(before map[string]refused) {
	same := func(a, b refused) bool { return a.Refusal == b.Refusal }
	if maps.EqualFunc(before, g.refused, same) {
		return
	}
	var all []Refusal
	for _, id := range slices.Sorted(maps.Keys(g.refused)) {
		r := g.refused[id]
		all = append(all, r.Refusal)
		if b, known := before[id]; !known || !same(b, r) {
			g.log.Warn("service refused by the directory", "service", id, "reason", r.Reason)
		}
	}
	for id := range before {
		if _, still := g.refused[id]; !still {
			g.log.Info("service no longer refused", "service", id)
		}
	}
	g.update(func(s *Status) { s.Refused = all })
	if g.cfg.OnRefused != nil {
		g.cfg.OnRefused(slices.Clone(all))
	}
}

// reportWrite reports a write that the directory accepted.
func (g *Gateway) reportWrite(w Write) {
	if w.FullSet {
		g.epoch = w.Epoch
	}
	g.update(func(s *Status) { s.LastWrite = time.Now() })
	log := g.log.Debug
	if w.Registered+w.Removed > 0 {
		log = g.log.Info
	}
	log("directory written", "epoch", w.Epoch, "index", w.Index, "full_set", w.FullSet,
		"registered", w.Registered, "unchanged", w.Unchanged, "removed", w.Removed, "took", w.Took)
	if g.cfg.OnWrite != nil {
		g.cfg.OnWrite(w)
	}
}
