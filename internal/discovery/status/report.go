package status

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The words of the contract for the fleet, and for a relayer: healthy, unhealthy and, as an extension, unknown.
const (
	healthy   = "healthy"
	degraded  = "degraded"
	unhealthy = "unhealthy"
	unknown   = "unknown"
)

// staleAfter is the age of the leader's answer above which the fleet is degraded.
const staleAfter = 3 * time.Second

// report is the content of /status: first the contract's fields, by name and in order, then the extensions.
type report struct {
	Service             string             `json:"service"`
	Status              string             `json:"status"`
	Timestamp           string             `json:"timestamp"`
	ActiveRelayers      []relayerReport    `json:"activeRelayers"` // the set last written to Redis
	TotalConfigured     int                `json:"totalConfigured"`
	TotalActive         int                `json:"totalActive"`
	HealthCheckInterval int64              `json:"healthCheckInterval"` // in milliseconds
	Node                string             `json:"node"`
	Version             string             `json:"version"`
	Cluster             string             `json:"cluster"`
	Epoch               uint64             `json:"epoch"`
	Leader              string             `json:"leader"`
	AgeMs               int64              `json:"ageMs"` // of the leader's answer, if it is not current
	Director            string             `json:"director"`
	Stalls              []stallReport      `json:"stalls"`
	Mirror              mirrorReport       `json:"mirror"`
	InactiveRelayers    []inactiveReport   `json:"inactiveRelayers"`
	OtherKinds          []*otherKindReport `json:"otherKinds"` // in order of arrival
	Notes               []string           `json:"notes"`
}

type relayerReport struct {
	ID                 string  `json:"id"`
	Status             string  `json:"status"`
	LastCheckTimestamp *string `json:"lastCheckTimestamp"`
	URL                string  `json:"url"`
}

type inactiveReport struct {
	relayerReport
	Failures uint32 `json:"failures"`
	Reason   string `json:"reason"`
}

type stallReport struct {
	Kind      string `json:"kind"`
	Needed    uint32 `json:"needed"`
	Available uint32 `json:"available"`
}

type mirrorReport struct {
	Connected    bool    `json:"connected"`
	Seq          uint64  `json:"seq"`
	LastWrite    *string `json:"lastWrite"`
	Error        string  `json:"error"`
	HeldRemovals uint32  `json:"heldRemovals"`
}

type otherKindReport struct {
	Kind            string `json:"kind"`
	TotalConfigured int    `json:"totalConfigured"`
	TotalActive     int    `json:"totalActive"`
}

// newReport returns the report on the leader's answer, which is age old. leaderless is the reason why there is none;
// the answer and configured are then this node's own.
func newReport(cfg Config, a *rollcallv1.GetStatusResponse, configured int, age time.Duration, leaderless error) *report {
	interval := cfg.Interval
	if d := a.GetInterval().AsDuration(); d > 0 {
		interval = d
	}
	m := a.GetMirror()
	r := &report{
		Service: "relayer-discovery", Timestamp: timefmt.Format(time.Now()),
		ActiveRelayers: make([]relayerReport, 0, len(a.GetServices())), TotalConfigured: configured, HealthCheckInterval: interval.Milliseconds(),
		Node: cfg.Node, Version: cfg.Version, Cluster: a.GetCluster(), Epoch: a.GetEpoch(), Leader: a.GetLeader(),
		AgeMs: age.Milliseconds(), Director: directorWord(a.GetDirector()), Stalls: []stallReport{},
		Mirror: mirrorReport{
			Connected: m.GetConnected(), Seq: m.GetSeq(), LastWrite: timeText(m.GetLastWrite()), Error: m.GetError(), HeldRemovals: m.GetHeld(),
		},
		InactiveRelayers: []inactiveReport{}, OtherKinds: []*otherKindReport{}, Notes: []string{},
	}
	for _, s := range a.GetStalls() {
		r.Stalls = append(r.Stalls, stallReport{Kind: s.GetKind(), Needed: s.GetNeeded(), Available: s.GetAvailable()})
	}
	unchecked := 0 // relayers not checked by this leader
	for _, s := range a.GetServices() {
		if s.GetKind() == rollcallv1.KindRelayer && s.GetVerdict() != rollcallv1.Verdict_VERDICT_UP && s.GetVerdict() != rollcallv1.Verdict_VERDICT_DOWN {
			unchecked++
		}
		r.addService(s)
	}
	r.TotalActive = len(r.ActiveRelayers)
	// A fleet without relayers is not unhealthy, because nothing can be lost. Neither is a fleet whose new leader has
	// neither checked it nor read the previous leader's results in Redis.
	unseen := unchecked > 0 && m.GetLastWrite() == nil
	switch {
	case leaderless != nil, r.TotalConfigured > 0 && r.TotalActive == 0 && !unseen:
		r.Status = unhealthy
	case r.TotalActive < r.TotalConfigured, !m.GetConnected(), age > staleAfter:
		r.Status = degraded
	default:
		r.Status = healthy
	}
	if leaderless != nil {
		r.Notes = append(r.Notes, "no leader answers: "+leaderless.Error())
	}
	if age > staleAfter {
		r.Notes = append(r.Notes, fmt.Sprintf("the leader does not answer: this is its report of %v ago", age.Round(time.Second)))
	}
	if r.TotalConfigured == 0 {
		r.Notes = append(r.Notes, "no relayers are configured")
	}
	if leaderless == nil && !m.GetConnected() {
		r.Notes = append(r.Notes, "redis is not kept up to date: "+cmp.Or(m.GetError(), "not reached yet"))
	}
	r.Notes = append(r.Notes, a.GetNotes()...)
	return r
}

// addService adds a service: a relayer with its details, one of another kind to the counts of that kind.
func (r *report) addService(s *rollcallv1.ServiceStatus) {
	if s.GetKind() != rollcallv1.KindRelayer {
		i := slices.IndexFunc(r.OtherKinds, func(k *otherKindReport) bool { return k.Kind == s.GetKind() })
		if i < 0 {
			i = len(r.OtherKinds)
			r.OtherKinds = append(r.OtherKinds, &otherKindReport{Kind: s.GetKind()})
		}
		r.OtherKinds[i].TotalConfigured++
		if s.GetActive() {
			r.OtherKinds[i].TotalActive++
		}
		return
	}
	r.TotalConfigured++
	relayer := relayerReport{ID: s.GetId(), Status: verdictWord(s.GetVerdict()), LastCheckTimestamp: timeText(s.GetLastCheck()), URL: s.GetUrl()}
	if s.GetActive() {
		r.ActiveRelayers = append(r.ActiveRelayers, relayer)
	} else {
		r.InactiveRelayers = append(r.InactiveRelayers, inactiveReport{relayer, s.GetFailures(), s.GetReason()})
	}
}

// timeText returns nil for a time that is not set.
func timeText(t *timestamppb.Timestamp) *string {
	if t == nil {
		return nil
	}
	return new(timefmt.Format(t.AsTime()))
}

func verdictWord(v rollcallv1.Verdict) string {
	switch v {
	case rollcallv1.Verdict_VERDICT_UP:
		return healthy
	case rollcallv1.Verdict_VERDICT_DOWN:
		return unhealthy
	}
	return unknown
}

func directorWord(s rollcallv1.DirectorState) string {
	switch s {
	case rollcallv1.DirectorState_DIRECTOR_STATE_RECOVERING:
		return "recovering"
	case rollcallv1.DirectorState_DIRECTOR_STATE_STALLED:
		return "stalled"
	case rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING:
		return "running"
	}
	return unknown
}

// page is an encoded response.
type page struct {
	code int
	body []byte
}

func (r *report) page() page {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return page{http.StatusInternalServerError, []byte("{}\n")} // no field of a report can fail
	}
	if r.Status == unhealthy {
		return page{http.StatusServiceUnavailable, body.Bytes()}
	}
	return page{http.StatusOK, body.Bytes()}
}
