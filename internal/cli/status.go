package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// StatusCmd shows the leader and the results of the health checks.
type StatusCmd struct {
	Kind string `help:"Only services of this kind."`
	OutputFlags
	RemoteFlags
}

// Check reports problems of the settings.
func (c *StatusCmd) Check(p *config.Problems) { c.check(p) }

// Fleet is what the leader reports, for scripts. Times are RFC 3339 with milliseconds, null when never.
type Fleet struct {
	Cluster    string          `json:"cluster"`
	Epoch      uint64          `json:"epoch"`
	Leader     string          `json:"leader"`
	Director   string          `json:"director"`
	IntervalMS int64           `json:"healthCheckInterval"`
	Stalls     []stall         `json:"stalls"`
	Mirror     mirrorState     `json:"mirror"`
	Services   []serviceStatus `json:"services"`
	Notes      []string        `json:"notes"`
}

type stall struct {
	Kind      string `json:"kind"`
	Needed    uint32 `json:"needed"`
	Available uint32 `json:"available"`
}

type mirrorState struct {
	Connected    bool    `json:"connected"`
	Seq          uint64  `json:"seq"`
	LastWrite    *string `json:"lastWrite"`
	Error        string  `json:"error"`
	HeldRemovals uint32  `json:"heldRemovals"`
}

type serviceStatus struct {
	ID        string  `json:"id"`
	Kind      string  `json:"kind"`
	URL       string  `json:"url"`
	Status    string  `json:"status"` // healthy, unhealthy, unknown
	Active    bool    `json:"active"` // shown in Redis
	LastCheck *string `json:"lastCheckTimestamp"`
	LatencyMS float64 `json:"latencyMs"`
	Failures  uint32  `json:"failures"`
	Reason    string  `json:"reason"`
}

// Run runs the command.
func (c *StatusCmd) Run(ctx context.Context, con *Console) error {
	a, err := c.admin()
	if err != nil {
		return err
	}
	defer a.Close()
	resp, err := a.Status(ctx)
	if err != nil {
		return err
	}
	f := fleetOf(resp, c.Kind)
	return c.Print(con.Stdout, f, f.table)
}

func fleetOf(resp *rollcallv1.GetStatusResponse, kind string) Fleet {
	f := Fleet{
		Cluster: resp.GetCluster(), Epoch: resp.GetEpoch(), Leader: resp.GetLeader(),
		Director: word(resp.GetDirector(), "DIRECTOR_STATE_"), IntervalMS: resp.GetInterval().AsDuration().Milliseconds(),
		Stalls: []stall{}, Services: []serviceStatus{}, Notes: append([]string{}, resp.GetNotes()...),
		Mirror: mirrorState{
			Connected: resp.GetMirror().GetConnected(), Seq: resp.GetMirror().GetSeq(), Error: resp.GetMirror().GetError(),
			LastWrite: timestamp(resp.GetMirror().GetLastWrite()), HeldRemovals: resp.GetMirror().GetHeld(),
		},
	}
	for _, s := range resp.GetStalls() {
		f.Stalls = append(f.Stalls, stall{s.GetKind(), s.GetNeeded(), s.GetAvailable()})
	}
	for _, s := range resp.GetServices() {
		if kind != "" && s.GetKind() != kind {
			continue
		}
		f.Services = append(f.Services, serviceStatus{
			ID: s.GetId(), Kind: s.GetKind(), URL: s.GetUrl(), Active: s.GetActive(), Failures: s.GetFailures(), Reason: s.GetReason(),
			Status:    verdicts[s.GetVerdict()],
			LastCheck: timestamp(s.GetLastCheck()),
			LatencyMS: float64(s.GetLatency().AsDuration().Microseconds()) / 1000,
		})
	}
	return f
}

var verdicts = map[rollcallv1.Verdict]string{
	rollcallv1.Verdict_VERDICT_UNSPECIFIED: "unknown",
	rollcallv1.Verdict_VERDICT_UNKNOWN:     "unknown",
	rollcallv1.Verdict_VERDICT_UP:          "healthy",
	rollcallv1.Verdict_VERDICT_DOWN:        "unhealthy",
}

func word(enum fmt.Stringer, prefix string) string {
	w := strings.ToLower(strings.TrimPrefix(enum.String(), prefix))
	if w == "unspecified" {
		return "unknown"
	}
	return w
}

func timestamp(t *timestamppb.Timestamp) *string {
	if t == nil {
		return nil
	}
	return new(timefmt.Format(t.AsTime()))
}

func (f Fleet) table(w io.Writer) {
	fmt.Fprintf(w, "leader    %s, epoch %d, cluster %s\n", cmp.Or(f.Leader, "-"), f.Epoch, f.Cluster)
	fmt.Fprintf(w, "director  %s, checks every %v\n", f.Director, time.Duration(f.IntervalMS)*time.Millisecond)
	for _, s := range f.Stalls {
		fmt.Fprintf(w, "stalled   %s: %d live, %d needed\n", s.Kind, s.Available, s.Needed)
	}
	fmt.Fprintf(w, "redis     %s\n", f.Mirror)
	type count struct{ active, all int }
	kinds := map[string]count{}
	var rows [][]string
	for _, s := range f.Services {
		k := kinds[s.Kind]
		k.all++
		active := "no"
		if s.Active {
			active = "yes"
			k.active++
		}
		kinds[s.Kind] = k
		checked, latency := "never", ""
		if s.LastCheck != nil {
			checked, latency = *s.LastCheck, fmt.Sprintf("%.1fms", s.LatencyMS)
		}
		rows = append(rows, []string{s.ID, s.Kind, s.Status, active, checked, latency, s.URL, s.Reason})
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		fmt.Fprintf(w, "%-9s %d of %d active\n", kind, kinds[kind].active, kinds[kind].all)
	}
	for _, note := range f.Notes {
		fmt.Fprintf(w, "note      %s\n", strings.Map(printable, note))
	}
	fmt.Fprintln(w)
	table(w, "ID KIND STATUS ACTIVE CHECKED LATENCY URL REASON", rows)
}

func (m mirrorState) String() string {
	text := "not connected"
	if m.Connected {
		text = fmt.Sprintf("connected, seq %d", m.Seq)
	}
	if m.LastWrite != nil {
		text += ", last write " + *m.LastWrite
	}
	if m.HeldRemovals > 0 {
		text += fmt.Sprintf(", %s held back by the guard", plural(int(m.HeldRemovals), "removal"))
	}
	if m.Error != "" {
		text += ": " + strings.Map(printable, m.Error)
	}
	return text
}
