package director

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/internal/health"
	"github.com/rollcall-dev/rollcall/internal/mirror"
	"github.com/rollcall-dev/rollcall/internal/stamp"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Status reports what is known of every service, in id order. It may be called at any time, by anyone; the answer
// is the caller's.
func (d *Director) Status() *rollcallv1.GetStatusResponse {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := &rollcallv1.GetStatusResponse{
		Cluster:  d.cfg.Cluster,
		Epoch:    d.cfg.Epoch,
		Leader:   d.cfg.Node,
		Director: d.state,
		Stalls:   d.stalls,
		Interval: durationpb.New(d.checker.Interval()),
		Services: make([]*rollcallv1.ServiceStatus, 0, d.services.Len()),
	}
	var unread bool
	answer.Mirror, answer.Notes, unread = d.mirrorStatus()

	// Of ten thousand services each message is a part of one allocation.
	type parts struct {
		status  rollcallv1.ServiceStatus
		check   timestamppb.Timestamp
		latency durationpb.Duration
	}
	all := make([]parts, d.services.Len())
	for id, s := range d.services.Scan {
		p := &all[len(answer.Services)]
		r := &s.result
		st := &p.status
		st.Id, st.Kind, st.Url = id, s.entry.Kind, r.URL
		st.Verdict = verdictProto(r.Verdict)
		st.Active = d.writer.Active(id)
		if unread {
			st.Active = r.Verdict == health.Up
		}
		st.Failures, st.Reason = uint32(r.Failures), r.Reason
		if !r.At.IsZero() {
			p.check.Seconds, p.check.Nanos = r.At.Unix(), int32(r.At.Nanosecond())
			st.LastCheck = &p.check
			p.latency.Seconds, p.latency.Nanos = int64(r.Latency/time.Second), int32(r.Latency%time.Second)
			st.Latency = &p.latency
		}
		answer.Services = append(answer.Services, st)
	}
	return answer
}

// mirrorStatus reports on the writer and the guard. unread says that Redis has been away for all of this epoch: what
// it lists is not known, and what it would list is what the checks find. d.mu is held.
func (d *Director) mirrorStatus() (_ *rollcallv1.MirrorStatus, notes []string, unread bool) {
	report := d.writer.Status()
	held, notes := d.holds()
	_, foreign := errors.AsType[*mirror.ForeignClusterError](cmp.Or(report.Err, d.refused))
	if unread = !report.Claimed && report.Err != nil && !foreign; unread {
		notes = append(notes, "redis has not answered this leader yet: active are those that its own checks find healthy")
	}
	m := &rollcallv1.MirrorStatus{Connected: report.Connected, Seq: report.Seq, Held: uint32(held)}
	if !report.LastWrite.IsZero() {
		m.LastWrite = timestamppb.New(report.LastWrite)
	}
	switch {
	case report.Err != nil:
		m.Error = report.Err.Error()
	case !report.Claimed && d.refused != nil:
		m.Error = d.refused.Error()
	}
	return m, notes, unread
}

func holdNote(name string, k *kind) string {
	return fmt.Sprintf("the mass-failure guard holds %d removals of kind %s until %s: %d of %d failed at once",
		k.held, name, stamp.Format(k.guard.holdUntil), k.lost(), k.alive())
}

func verdictProto(v health.Verdict) rollcallv1.Verdict {
	switch v {
	case health.Up:
		return rollcallv1.Verdict_VERDICT_UP
	case health.Down:
		return rollcallv1.Verdict_VERDICT_DOWN
	default:
		return rollcallv1.Verdict_VERDICT_UNKNOWN
	}
}
