package status

import (
	"cmp"
	"encoding/json"
	"strconv"
	"time"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const relayerKind = "relayer"

// The words of the contract for the fleet, and for a relayer: healthy, unhealthy and, ours, unknown.
const (
	healthy   = "healthy"
	degraded  = "degraded"
	unhealthy = "unhealthy"
	unknown   = "unknown"
)

// report is what /status says. It is written by hand: the fleet may have ten thousand relayers.
type report struct {
	node, version string
	at            time.Time
	interval      time.Duration
	leaderless    error // why the leader's word is missing

	answer             *rollcallv1.GetStatusResponse
	configured, active int
	unchecked          int         // relayers, by this leader
	others             []kindCount // services of other kinds, in the order they came
}

type kindCount struct {
	kind               string
	configured, active int
}

// fill takes in the leader's answer.
func (r *report) fill(answer *rollcallv1.GetStatusResponse) {
	r.answer = answer
	if d := answer.GetInterval().AsDuration(); d > 0 {
		r.interval = d
	}
	for _, s := range answer.GetServices() {
		configured, active := &r.configured, &r.active
		if s.Kind != relayerKind {
			k := r.kind(s.Kind)
			configured, active = &k.configured, &k.active
		}
		*configured++
		if s.Active {
			*active++
		}
		if s.Kind == relayerKind && s.Verdict != rollcallv1.Verdict_VERDICT_UP && s.Verdict != rollcallv1.Verdict_VERDICT_DOWN {
			r.unchecked++
		}
	}
}

func (r *report) kind(kind string) *kindCount {
	for i := range r.others {
		if r.others[i].kind == kind {
			return &r.others[i]
		}
	}
	r.others = append(r.others, kindCount{kind: kind})
	return &r.others[len(r.others)-1]
}

// verdict on the fleet. One without relayers is not ill: there is nothing to be lost. Nor is one whose new leader has
// neither checked it nor read in Redis what the one before had found.
func (r *report) verdict() string {
	unseen := r.unchecked > 0 && r.answer.GetMirror().GetLastWrite() == nil
	switch {
	case r.leaderless != nil, r.configured > 0 && r.active == 0 && !unseen:
		return unhealthy
	case r.active < r.configured, !r.answer.GetMirror().GetConnected():
		return degraded
	}
	return healthy
}

func (r *report) notes() []string {
	var notes []string
	if r.leaderless != nil {
		notes = append(notes, "no leader answers: "+r.leaderless.Error())
	}
	if r.configured == 0 {
		notes = append(notes, "no relayers are configured")
	}
	if r.leaderless == nil && !r.answer.GetMirror().GetConnected() {
		notes = append(notes, "redis is not kept up to date: "+cmp.Or(r.answer.GetMirror().GetError(), "not reached yet"))
	}
	return append(notes, r.answer.GetNotes()...)
}

// append writes the report: first the contract's fields, by their names and in their order, then our own.
func (r *report) append(b []byte) []byte {
	if b == nil {
		b = make([]byte, 0, 1024+160*len(r.answer.GetServices()))
	}
	b = append(b, `{"service":"relayer-discovery","status":`...)
	b = appendString(b, r.verdict())
	b = append(b, `,"timestamp":`...)
	b = appendTime(b, r.at)
	b = append(b, `,"activeRelayers":[`...)
	b = r.appendRelayers(b, true)
	b = append(b, `],"totalConfigured":`...)
	b = strconv.AppendInt(b, int64(r.configured), 10)
	b = append(b, `,"totalActive":`...)
	b = strconv.AppendInt(b, int64(r.active), 10)
	b = append(b, `,"healthCheckInterval":`...)
	b = strconv.AppendInt(b, r.interval.Milliseconds(), 10)

	b = append(b, `,"node":`...)
	b = appendString(b, r.node)
	b = append(b, `,"version":`...)
	b = appendString(b, r.version)
	b = append(b, `,"cluster":`...)
	b = appendString(b, r.answer.GetCluster())
	b = append(b, `,"epoch":`...)
	b = strconv.AppendUint(b, r.answer.GetEpoch(), 10)
	b = append(b, `,"leader":`...)
	b = appendString(b, r.answer.GetLeader())
	b = append(b, `,"director":`...)
	b = appendString(b, directorWord(r.answer.GetDirector()))
	b = append(b, `,"stalls":[`...)
	for i, s := range r.answer.GetStalls() {
		b = comma(b, i)
		b = append(b, `{"kind":`...)
		b = appendString(b, s.Kind)
		b = append(b, `,"needed":`...)
		b = strconv.AppendUint(b, uint64(s.Needed), 10)
		b = append(b, `,"available":`...)
		b = strconv.AppendUint(b, uint64(s.Available), 10)
		b = append(b, '}')
	}
	b = append(b, `],"mirror":`...)
	b = appendMirror(b, r.answer.GetMirror())
	b = append(b, `,"inactiveRelayers":[`...)
	b = r.appendRelayers(b, false)
	b = append(b, `],"otherKinds":[`...)
	for i, k := range r.others {
		b = comma(b, i)
		b = append(b, `{"kind":`...)
		b = appendString(b, k.kind)
		b = append(b, `,"totalConfigured":`...)
		b = strconv.AppendInt(b, int64(k.configured), 10)
		b = append(b, `,"totalActive":`...)
		b = strconv.AppendInt(b, int64(k.active), 10)
		b = append(b, '}')
	}
	b = append(b, `],"notes":[`...)
	for i, note := range r.notes() {
		b = comma(b, i)
		b = appendString(b, note)
	}
	return append(b, "]}\n"...)
}

// appendRelayers writes those in the set last written to Redis, or, with why, those not in it.
func (r *report) appendRelayers(b []byte, active bool) []byte {
	i := 0
	for _, s := range r.answer.GetServices() {
		if s.Kind != relayerKind || s.Active != active {
			continue
		}
		b = comma(b, i)
		i++
		b = append(b, `{"id":`...)
		b = appendString(b, s.Id)
		b = append(b, `,"status":`...)
		b = appendString(b, verdictWord(s.Verdict))
		b = append(b, `,"lastCheckTimestamp":`...)
		if t := s.GetLastCheck(); t != nil {
			b = appendTime(b, t.AsTime())
		} else {
			b = append(b, "null"...)
		}
		b = append(b, `,"url":`...)
		b = appendString(b, s.Url)
		if !active {
			b = append(b, `,"failures":`...)
			b = strconv.AppendUint(b, uint64(s.Failures), 10)
			b = append(b, `,"reason":`...)
			b = appendString(b, s.Reason)
		}
		b = append(b, '}')
	}
	return b
}

func appendMirror(b []byte, m *rollcallv1.MirrorStatus) []byte {
	b = append(b, `{"connected":`...)
	b = strconv.AppendBool(b, m.GetConnected())
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, m.GetSeq(), 10)
	b = append(b, `,"lastWrite":`...)
	if t := m.GetLastWrite(); t != nil {
		b = appendTime(b, t.AsTime())
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"error":`...)
	b = appendString(b, m.GetError())
	b = append(b, `,"heldRemovals":`...)
	b = strconv.AppendUint(b, uint64(m.GetHeld()), 10)
	return append(b, '}')
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

func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// appendTime writes RFC 3339 in UTC with three decimals.
func appendTime(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, `"2006-01-02T15:04:05.000Z"`)
}

// appendString writes a JSON string. Nearly all here need no escape.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // of a string it cannot fail
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
