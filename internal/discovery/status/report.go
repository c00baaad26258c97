package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

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

// report is the content of /status. It is encoded by hand, because the fleet may have ten thousand relayers.
type report struct {
	node, version string
	at            time.Time
	interval      time.Duration
	leaderless    error // why the leader's answer is missing
	// age is the age of the leader's answer, if it is not current.
	age time.Duration
	*statusSnapshot
}

// verdict returns the verdict on the fleet. A fleet without relayers is not unhealthy, because nothing can be lost.
// Neither is a fleet whose new leader has neither checked it nor read the previous leader's results in Redis.
func (r *report) verdict() string {
	unseen := r.unchecked > 0 && r.answer.GetMirror().GetLastWrite() == nil
	switch {
	case r.leaderless != nil, r.configured > 0 && r.active == 0 && !unseen:
		return unhealthy
	case r.active < r.configured, !r.answer.GetMirror().GetConnected(), r.age > staleAfter:
		return degraded
	}
	return healthy
}

func (r *report) notes() []string {
	var notes []string
	if r.leaderless != nil {
		notes = append(notes, "no leader answers: "+r.leaderless.Error())
	}
	if r.age > staleAfter {
		notes = append(notes, fmt.Sprintf("the leader does not answer: this is what it said %v ago", r.age.Round(time.Second)))
	}
	if r.configured == 0 {
		notes = append(notes, "no relayers are configured")
	}
	if r.leaderless == nil && !r.answer.GetMirror().GetConnected() {
		notes = append(notes, "redis is not kept up to date: "+cmp.Or(r.answer.GetMirror().GetError(), "not reached yet"))
	}
	return append(notes, r.answer.GetNotes()...)
}

// parts returns the report in pieces: first the contract's fields, by name and in order, then the extensions. It does
// not copy the fleet's pieces.
func (r *report) parts() [][]byte {
	b := make([]byte, 0, 256)
	b = append(b, `{"service":"relayer-discovery","status":`...)
	b = appendString(b, r.verdict())
	b = append(b, `,"timestamp":`...)
	b = appendTime(b, r.at)
	b = append(b, `,"activeRelayers":[`...)
	return [][]byte{b, r.activeJSON, r.middle(), r.inactiveJSON, r.end()}
}

// middle returns the part between active and inactive relayers.
func (r *report) middle() []byte {
	interval := r.interval
	if d := r.answer.GetInterval().AsDuration(); d > 0 {
		interval = d
	}
	b := make([]byte, 0, 1024)
	b = append(b, `],"totalConfigured":`...)
	b = strconv.AppendInt(b, int64(r.configured), 10)
	b = append(b, `,"totalActive":`...)
	b = strconv.AppendInt(b, int64(r.active), 10)
	b = append(b, `,"healthCheckInterval":`...)
	b = strconv.AppendInt(b, interval.Milliseconds(), 10)

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
	b = append(b, `,"ageMs":`...)
	b = strconv.AppendInt(b, r.age.Milliseconds(), 10)
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
	return append(b, `,"inactiveRelayers":[`...)
}

func (r *report) end() []byte {
	b := append([]byte(nil), `],"otherKinds":[`...)
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

// appendString appends a JSON string. Almost all strings here need no escape.
func appendString[T string | []byte](b []byte, s T) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(string(s)) // cannot fail for a string
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
