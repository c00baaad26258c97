package director

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The constants are field numbers of GetStatusResponse, ServiceStatus, Timestamp and Duration.
const (
	fieldServices = 8

	fieldID        = 1
	fieldKind      = 2
	fieldURL       = 3
	fieldVerdict   = 4
	fieldActive    = 5
	fieldLastCheck = 6
	fieldLatency   = 7
	fieldFailures  = 8
	fieldReason    = 9

	fieldSeconds = 1
	fieldNanos   = 2
)

// Epoch returns the director's epoch.
func (d *Director) Epoch() uint64 { return d.cfg.Epoch }

// Status appends the state of every service to b, in id order, as an encoded GetStatusResponse. Ten thousand services
// as messages would take several times as long, and create enough garbage to delay other requests. It may be called
// concurrently at any time.
func (d *Director) Status(b []byte) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	head := &rollcallv1.GetStatusResponse{
		Cluster:  d.cfg.Cluster,
		Epoch:    d.cfg.Epoch,
		Leader:   d.cfg.Node,
		Director: d.state,
		Stalls:   d.stalls,
		Interval: durationpb.New(d.checker.Interval()),
	}
	var unread bool
	head.Mirror, head.Notes, unread = d.mirrorStatus()
	b, err := proto.MarshalOptions{}.MarshalAppend(b, head)
	if err != nil {
		return b, fmt.Errorf("encode the status: %w", err)
	}

	b = slices.Grow(b, d.statusSize)
	begin := len(b)
	var one []byte // buffer, because a field's length precedes it
	d.writer.ReadActive(func(active func(id, kind string) bool) {
		for id, s := range d.services.Scan {
			r := &s.result
			listed := r.Verdict == health.Up
			if !unread {
				listed = active(id, s.entry.Kind)
			}
			one = appendService(one[:0], s, listed)
			b = appendBytes(b, fieldServices, one)
		}
	})
	d.statusSize = len(b) - begin + d.services.Len() // a little more than this time
	return b, nil
}

// appendService writes the non-zero fields of a ServiceStatus.
func appendService(b []byte, s *service, active bool) []byte {
	r := &s.result
	b = appendBytes(b, fieldID, s.entry.ID)
	b = appendBytes(b, fieldKind, s.entry.Kind)
	b = appendBytes(b, fieldURL, r.URL)
	b = appendNumber(b, fieldVerdict, uint64(verdictProto(r.Verdict)))
	b = appendNumber(b, fieldActive, protowire.EncodeBool(active))
	if !r.At.IsZero() {
		b = appendTime(b, fieldLastCheck, r.At.Unix(), r.At.Nanosecond())
		b = appendTime(b, fieldLatency, int64(r.Latency/time.Second), int(r.Latency%time.Second))
	}
	b = appendNumber(b, fieldFailures, uint64(r.Failures))
	return appendBytes(b, fieldReason, r.Reason)
}

func appendBytes[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

// appendTime writes a Timestamp or a Duration.
func appendTime(b []byte, field protowire.Number, seconds int64, nanos int) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	size := len(b)
	b = append(b, 0) // the length fits one byte: it is at most 16
	b = appendNumber(b, fieldSeconds, uint64(seconds))
	b = appendNumber(b, fieldNanos, uint64(nanos))
	b[size] = byte(len(b) - size - 1)
	return b
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
