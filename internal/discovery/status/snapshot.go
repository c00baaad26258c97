package status

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const relayerKind = "relayer"

// statusSnapshot is the leader's answer prepared for reports. It is immutable while it has readers. A large fleet is
// read directly from the encoded answer, because decoding it first costs more than everything else.
type statusSnapshot struct {
	raw     []byte // the encoded answer
	readers int    // guarded by source.mu

	// answer excludes the services.
	answer             *rollcallv1.GetStatusResponse
	configured, active int
	unchecked          int         // relayers not checked by this leader
	others             []kindCount // services of other kinds, in order of arrival
	// activeJSON and inactiveJSON are comma-separated JSON objects: the relayers in the set last written to Redis, and
	// the others with the reason.
	activeJSON, inactiveJSON []byte
}

type kindCount struct {
	kind               string
	configured, active int
}

// The constants are field numbers of GetStatusResponse and ServiceStatus.
const (
	fieldServices = 8

	fieldID        = 1
	fieldKind      = 2
	fieldURL       = 3
	fieldVerdict   = 4
	fieldActive    = 5
	fieldLastCheck = 6
	fieldFailures  = 8
	fieldReason    = 9

	fieldSeconds = 1
	fieldNanos   = 2
)

var errGarbled = errors.New("the leader's answer is garbled")

// read fills the snapshot from raw, an encoded GetStatusResponse. It reuses the previous memory.
func (f *statusSnapshot) read() error {
	*f = statusSnapshot{
		raw: f.raw, answer: new(rollcallv1.GetStatusResponse),
		activeJSON: f.activeJSON[:0], inactiveJSON: f.inactiveJSON[:0],
	}
	raw := f.raw
	var head []byte
	for len(raw) > 0 {
		num, typ, tag := protowire.ConsumeTag(raw)
		if tag < 0 {
			return errGarbled
		}
		size := protowire.ConsumeFieldValue(num, typ, raw[tag:])
		if size < 0 {
			return errGarbled
		}
		field := raw[:tag+size]
		raw = raw[tag+size:]
		if num != fieldServices || typ != protowire.BytesType {
			head = append(head, field...)
			continue
		}
		service, _ := protowire.ConsumeBytes(field[tag:])
		if err := f.add(service); err != nil {
			return err
		}
	}
	if err := proto.Unmarshal(head, f.answer); err != nil {
		return fmt.Errorf("%w: %w", errGarbled, err)
	}
	return nil
}

// service is a decoded ServiceStatus. Its text is not copied.
type service struct {
	id, kind, url, reason []byte
	verdict               rollcallv1.Verdict
	active                bool
	checked               bool
	lastCheck             time.Time
	failures              uint64
}

func (f *statusSnapshot) add(raw []byte) error {
	var s service
	ok := eachField(raw, func(num protowire.Number, text []byte, n uint64) {
		switch num {
		case fieldID:
			s.id = text
		case fieldKind:
			s.kind = text
		case fieldURL:
			s.url = text
		case fieldVerdict:
			s.verdict = rollcallv1.Verdict(n)
		case fieldActive:
			s.active = n != 0
		case fieldLastCheck:
			var seconds, nanos int64
			s.checked = eachField(text, func(num protowire.Number, _ []byte, n uint64) {
				switch num {
				case fieldSeconds:
					seconds = int64(n)
				case fieldNanos:
					nanos = int64(n)
				}
			})
			s.lastCheck = time.Unix(seconds, nanos)
		case fieldFailures:
			s.failures = n
		case fieldReason:
			s.reason = text
		}
	})
	if !ok {
		return errGarbled
	}
	if string(s.kind) != relayerKind {
		k := f.kind(s.kind)
		k.configured++
		if s.active {
			k.active++
		}
		return nil
	}
	f.configured++
	if s.verdict != rollcallv1.Verdict_VERDICT_UP && s.verdict != rollcallv1.Verdict_VERDICT_DOWN {
		f.unchecked++
	}
	if s.active {
		f.active++
		f.activeJSON = s.append(f.activeJSON)
	} else {
		f.inactiveJSON = s.append(f.inactiveJSON)
	}
	return nil
}

// eachField calls fn for the text and number fields of a message, and reports whether it is well-formed.
func eachField(raw []byte, fn func(num protowire.Number, text []byte, n uint64)) bool {
	for len(raw) > 0 {
		num, typ, tag := protowire.ConsumeTag(raw)
		if tag < 0 {
			return false
		}
		raw = raw[tag:]
		var text []byte
		var n uint64
		var size int
		switch typ {
		case protowire.BytesType:
			text, size = protowire.ConsumeBytes(raw)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(raw)
		default:
			size = protowire.ConsumeFieldValue(num, typ, raw)
			num = 0
		}
		if size < 0 {
			return false
		}
		fn(num, text, n)
		raw = raw[size:]
	}
	return true
}

func (f *statusSnapshot) kind(kind []byte) *kindCount {
	for i := range f.others {
		if f.others[i].kind == string(kind) {
			return &f.others[i]
		}
	}
	f.others = append(f.others, kindCount{kind: string(kind)})
	return &f.others[len(f.others)-1]
}

// append appends a relayer as JSON.
func (s *service) append(b []byte) []byte {
	b = comma(b, len(b))
	b = append(b, `{"id":`...)
	b = appendString(b, s.id)
	b = append(b, `,"status":`...)
	b = appendString(b, verdictWord(s.verdict))
	b = append(b, `,"lastCheckTimestamp":`...)
	if s.checked {
		b = appendTime(b, s.lastCheck)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"url":`...)
	b = appendString(b, s.url)
	if !s.active {
		b = append(b, `,"failures":`...)
		b = strconv.AppendUint(b, s.failures, 10)
		b = append(b, `,"reason":`...)
		b = appendString(b, s.reason)
	}
	return append(b, '}')
}

// appendTime appends a time in quotes.
func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = timefmt.Append(b, t)
	return append(b, '"')
}
