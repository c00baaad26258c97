package director

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Epoch returns the director's epoch.
func (d *Director) Epoch() uint64 { return d.cfg.Epoch }

// Status returns the state of every service, in id order. It may be called concurrently at any time.
func (d *Director) Status() *rollcallv1.GetStatusResponse {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &rollcallv1.GetStatusResponse{
		Cluster:  d.cfg.Cluster,
		Epoch:    d.cfg.Epoch,
		Leader:   d.cfg.Node,
		Director: d.state,
		Stalls:   d.stalls,
		Interval: durationpb.New(d.checker.Interval()),
		Services: make([]*rollcallv1.ServiceStatus, 0, d.services.Len()),
	}
	var unread bool
	s.Mirror, s.Notes, unread = d.mirrorStatus()
	// The parts of all services are allocated at once: ten thousand single ones delay other requests.
	parts := make([]serviceStatus, d.services.Len())
	d.writer.ReadActive(func(active func(id, kind string) bool) {
		for id, service := range d.services.Scan {
			listed := service.state.Status == mirror.Healthy
			if !unread {
				listed = active(id, service.entry.Kind)
			}
			s.Services = append(s.Services, parts[len(s.Services)].fill(service, listed))
		}
	})
	return s
}

// serviceStatus is a service's status with the messages that it refers to.
type serviceStatus struct {
	status    rollcallv1.ServiceStatus
	lastCheck timestamppb.Timestamp
	latency   durationpb.Duration
}

func (s *serviceStatus) fill(of *service, active bool) *rollcallv1.ServiceStatus {
	s.status.Id, s.status.Kind, s.status.Url = of.entry.ID, of.entry.Kind, of.state.URL
	s.status.Verdict, s.status.Active = verdictProto(of.state.Status), active
	s.status.Failures, s.status.Reason = uint32(of.state.Failures), of.state.Reason
	if at := of.state.LastCheck; !at.IsZero() {
		s.lastCheck.Seconds, s.lastCheck.Nanos = at.Unix(), int32(at.Nanosecond())
		s.latency.Seconds, s.latency.Nanos = int64(of.state.Latency/time.Second), int32(of.state.Latency%time.Second)
		s.status.LastCheck, s.status.Latency = &s.lastCheck, &s.latency
	}
	return &s.status
}

// mirrorStatus reports on the writer and the guard. unread reports that Redis has been away for the whole epoch. Then
// the list in Redis is unknown, and the check results replace it. d.mu is held.
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
		m.Error = strings.ToValidUTF8(report.Err.Error(), "?") // otherwise it could not be encoded
	case !report.Claimed && d.refused != nil:
		m.Error = strings.ToValidUTF8(d.refused.Error(), "?")
	}
	return m, notes, unread
}

func holdNote(name string, k *kind) string {
	return fmt.Sprintf("the mass-failure guard holds %d removals of kind %s until %s: %d of %d failed at once",
		k.held, name, timefmt.Format(k.guard.holdUntil), k.lost(), k.alive())
}

func verdictProto(status mirror.Status) rollcallv1.Verdict {
	switch status {
	case mirror.Healthy:
		return rollcallv1.Verdict_VERDICT_UP
	case mirror.Unhealthy:
		return rollcallv1.Verdict_VERDICT_DOWN
	default:
		return rollcallv1.Verdict_VERDICT_UNKNOWN
	}
}
