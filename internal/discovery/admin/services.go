package admin

import (
	"context"
	"iter"
	"slices"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Service is an entry of the directory. Its JSON is for scripts.
type Service struct {
	ID      string            `json:"id"`
	Kind    string            `json:"kind"`
	URL     string            `json:"url"`
	Node    string            `json:"node"`
	Labels  map[string]string `json:"labels"`
	Owner   string            `json:"owner"`
	Version uint64            `json:"version"`
}

func serviceOf(r *rollcallv1.ServiceRecord) Service {
	s := Service{
		ID: r.GetService().GetId(), Kind: r.GetService().GetKind(),
		URL: r.GetService().GetWorkerRef().GetUrl(), Node: r.GetService().GetWorkerRef().GetNode(),
		Labels: r.GetService().GetWorkerRef().GetLabels(), Version: r.GetVersion(),
		Owner: gateway.Owner{Kind: r.GetOwner().GetKind(), ID: r.GetOwner().GetId()}.String(),
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	return s
}

// Directory is a list of services. Its JSON is for scripts.
type Directory struct {
	Cluster  string    `json:"cluster"`
	Epoch    uint64    `json:"epoch"`
	Index    uint64    `json:"index"`
	Services []Service `json:"services"`
}

// Missing returns those of ids that no service of the list has, in their order.
func (d *Directory) Missing(ids []string) []string {
	missing := []string{}
	for _, id := range ids {
		if !slices.ContainsFunc(d.Services, func(s Service) bool { return s.ID == id }) {
			missing = append(missing, id)
		}
	}
	return missing
}

// Selection is which services to read, and from where. The zero Selection is all of them, from the leader.
type Selection struct {
	IDs  []string
	Kind string
	// Stale reads the copy of any coordinator, which may lag. It also works without a leader.
	Stale bool
}

// Services reads the selected services. It fetches all pages; cluster, epoch and index are those of the first.
func (a *Admin) Services(ctx context.Context, s Selection) (*Directory, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.list(ctx, s)
}

func (a *Admin) list(ctx context.Context, s Selection) (*Directory, error) {
	req := &rollcallv1.ListServicesRequest{Ids: s.IDs, Kind: s.Kind, Stale: s.Stale}
	d := &Directory{Services: []Service{}}
	for first := true; ; first = false {
		page, err := a.client.List(ctx, req)
		if err != nil {
			return nil, err
		}
		if first {
			d.Cluster, d.Epoch, d.Index = page.GetCluster(), page.GetEpoch(), page.GetIndex()
		}
		for _, r := range page.GetRecords() {
			d.Services = append(d.Services, serviceOf(r))
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return d, nil
		}
	}
}

// operator writes without a fence: a person looks before repeating.
func operator() *rollcallv1.Writer {
	return &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_OPERATOR}}
}

// Registered is the result of a registration. Its JSON is for scripts.
type Registered struct {
	Epoch      uint64 `json:"epoch"`
	Index      uint64 `json:"index"`
	Registered uint32 `json:"registered"`
	Unchanged  uint32 `json:"unchanged"`
}

// Register registers services as the operator's, all or none. With force it takes them over from their owners; without, it
// fails with a [gateway.ConflictError]. It fails with a [gateway.UnknownOutcomeError] if it may be done or not.
func (a *Admin) Register(ctx context.Context, services []*rollcallv1.Service, force bool) (Registered, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	resp, err := a.client.Register(ctx, &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: services, Force: force})
	return Registered{resp.GetEpoch(), resp.GetIndex(), resp.GetRegistered(), resp.GetUnchanged()}, err
}

// Deregistered is the result of a removal. Its JSON is for scripts.
type Deregistered struct {
	Epoch   uint64   `json:"epoch"`
	Index   uint64   `json:"index"`
	Removed uint32   `json:"removed"`
	Absent  []string `json:"absent"` // not in the directory just before, sorted
}

// Deregister removes services, all or none, and fails as [Admin.Register] does. An id that is not in the directory counts as
// removed.
func (a *Admin) Deregister(ctx context.Context, ids []string, force bool) (Deregistered, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	before, err := a.list(ctx, Selection{IDs: ids}) // a removal does not report which of its ids were there
	if err != nil {
		return Deregistered{}, err
	}
	resp, err := a.client.Deregister(ctx, &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: ids, Force: force})
	return Deregistered{resp.GetEpoch(), resp.GetIndex(), resp.GetRemoved(), before.Missing(slices.Sorted(slices.Values(ids)))}, err
}

// Event is a change of the directory, or how far a watch has come. Its JSON is for scripts. Event is service (a service that is
// there already), ready (there are no more of them), added, changed, removed, or token (nothing happened).
type Event struct {
	Event   string   `json:"event"`
	Service *Service `json:"service,omitempty"`
	Before  *Service `json:"before,omitempty"`
	// Token resumes a watch after this event. Only the last one of several simultaneous events has it.
	Token string `json:"token,omitempty"`
}

// Watch yields the services of a kind, or of all kinds if it is empty, and then every change until ctx ends. With the token of an
// earlier event it yields only the changes after that event. It ends after an error, which is [gateway.ErrCompacted] if
// the changes after the token are gone. The stream has no time limit, but finding the cluster has.
func (a *Admin) Watch(ctx context.Context, kind, token string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if _, err := a.Leader(ctx); err != nil {
			yield(Event{}, err)
			return
		}
		for resp, err := range a.client.Watch(ctx, &rollcallv1.WatchServicesRequest{Kind: kind, ResumeToken: token}) {
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, event := range eventsOf(resp) {
				if !yield(event, nil) {
					return
				}
			}
		}
	}
}

// eventsOf gives the last event of a message its token, which stands for all before it.
func eventsOf(resp *rollcallv1.WatchServicesResponse) []Event {
	var events []Event
	switch e := resp.GetEvent().(type) {
	case *rollcallv1.WatchServicesResponse_Snapshot:
		for _, r := range e.Snapshot.GetRecords() {
			events = append(events, Event{Event: "service", Service: new(serviceOf(r))})
		}
	case *rollcallv1.WatchServicesResponse_SnapshotEnd:
		events = append(events, Event{Event: "ready"})
	case *rollcallv1.WatchServicesResponse_Changes:
		for _, change := range e.Changes.GetChanges() {
			event := Event{Event: "changed"}
			if change.GetBefore() != nil {
				event.Before = new(serviceOf(change.GetBefore()))
			} else {
				event.Event = "added"
			}
			if change.GetAfter() != nil {
				event.Service = new(serviceOf(change.GetAfter()))
			} else {
				event.Event = "removed"
			}
			events = append(events, event)
		}
	default:
		events = append(events, Event{Event: "token"})
	}
	if len(events) > 0 {
		events[len(events)-1].Token = resp.GetToken()
	}
	return events
}
