package crashtest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// report is a status of a transaction that a client received.
type report struct {
	source string // "POST", "GET", "DELETE" or "webhook"
	status relayer.APIStatus
	hash   string // "" for none
	// delivery and revision are those of a webhook. Answers have none.
	delivery string
	revision int
	// asked is when a client sent its request; zero for a webhook.
	asked, received time.Time
}

func (r report) String() string {
	return fmt.Sprintf("%s %s revision %d hash %.10s at %s", r.source, r.status, r.revision, r.hash, r.received.Format("15:04:05.000"))
}

// reportLog records every status that clients received, from answers and webhooks.
type reportLog struct {
	mu      sync.Mutex
	all     map[string][]report // by transaction, in the order of their arrival
	repeats int                 // repeated webhooks
}

func newReportLog() *reportLog { return &reportLog{all: map[string][]report{}} }

// shown is a transaction in an answer or a webhook.
type shown struct {
	ID       string
	Status   relayer.APIStatus
	Hash     *string
	Revision int
}

// answer records the answer to a request that was sent at asked, and returns the id of its transaction.
func (l *reportLog) answer(source string, asked time.Time, body []byte) (tx string, err error) {
	var envelope struct{ Data shown }
	if err := json.Unmarshal(body, &envelope); err != nil {
		return "", fmt.Errorf("%s answered %s: %w", source, body, err)
	}
	l.record(envelope.Data, report{source: source, asked: asked, received: time.Now()})
	return envelope.Data.ID, nil
}

func (l *reportLog) record(tx shown, r report) {
	r.status = tx.Status
	if tx.Hash != nil {
		r.hash = *tx.Hash
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.delivery != "" && slices.ContainsFunc(l.all[tx.ID], func(b report) bool { return b.delivery == r.delivery }) {
		l.repeats++
		return
	}
	l.all[tx.ID] = append(l.all[tx.ID], r)
}

// receive starts a webhook target, and returns the settings of the relayers for it.
func (l *reportLog) receive(t testing.TB) (env []string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // its sender died: the delivery is repeated
		}
		var hook struct {
			ID, Event string
			Payload   shown
		}
		if err := json.Unmarshal(body, &hook); err != nil {
			t.Errorf("a webhook has the body %s: %v", body, err)
		}
		if hook.Event == "transaction_update" {
			l.record(hook.Payload, report{source: "webhook", delivery: hook.ID, revision: hook.Payload.Revision, received: time.Now()})
		}
	}))
	t.Cleanup(server.Close)
	return []string{
		"RELAYER_WEBHOOK_URL=" + server.URL, "RELAYER_WEBHOOK_SIGNING_KEY=" + apiKey, "RELAYER_WEBHOOK_ALLOW_PRIVATE=true",
	}
}

// summary counts the reports by source.
func (l *reportLog) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	bySource := map[string]int{"webhook (repeated)": l.repeats}
	for _, reports := range l.all {
		for _, r := range reports {
			bySource[r.source]++
		}
	}
	return fmt.Sprintf("reports of %d transactions: %s", len(l.all), counts(bySource))
}

// outcome is the end of a transaction, in the store and on the chain.
type outcome struct {
	status   relayer.APIStatus
	hash     string // "" for none
	revision int
	// executions is how often the chain executed its call.
	executions uint64
	// mined reports whether the chain has hash in a block.
	mined bool
}

// contradictions returns each report that the chain, the store or a later report contradicts. It compares with the
// outcomes, which must be complete. Reports received before the end of the last reorganization may have been taken
// back, webhooks only by one of a higher revision. reorganized is the zero time if there was no reorganization.
func (l *reportLog) contradictions(ends map[string]outcome, reorganized time.Time) (wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tx := range slices.Sorted(maps.Keys(ends)) {
		for _, problem := range ends[tx].problems() {
			wrong = append(wrong, fmt.Sprintf("%s: %s", tx, problem))
		}
	}
	for _, tx := range slices.Sorted(maps.Keys(l.all)) {
		end, stored := ends[tx]
		if !stored {
			wrong = append(wrong, fmt.Sprintf("%s: %v, but it is not stored", tx, l.all[tx]))
			continue
		}
		for _, problem := range contradictions(l.all[tx], end, reorganized) {
			wrong = append(wrong, fmt.Sprintf("%s: %s", tx, problem))
		}
	}
	return wrong
}

// problems returns the contradictions between store and chain.
func (o outcome) problems() (wrong []string) {
	if !final(o.status) {
		wrong = append(wrong, fmt.Sprintf("it ended as %s, which is not final", o.status))
	}
	want := uint64(0)
	if o.status == relayer.APIConfirmed {
		want = 1
	}
	if o.executions != want {
		wrong = append(wrong, fmt.Sprintf("it is %s and was executed %d times", o.status, o.executions))
	}
	if o.status == relayer.APIConfirmed && o.hash == "" || o.hash != "" && !o.mined {
		wrong = append(wrong, fmt.Sprintf("it is %s with the hash %q, which the chain has not mined", o.status, o.hash))
	}
	return wrong
}

func final(s relayer.APIStatus) bool {
	switch s {
	case relayer.APIConfirmed, relayer.APIFailed, relayer.APICanceled, relayer.APIExpired:
		return true
	default:
		return false
	}
}

// goesBack reports whether a transaction cannot have had status b after status a without a reorganization.
func goesBack(a, b relayer.APIStatus) bool {
	return final(a) && a != b || a == relayer.APIMined && b != a && !final(b)
}

// contradictions returns the contradictions in the reports of one transaction, in the order of their arrival.
func contradictions(reports []report, end outcome, reorganized time.Time) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	excused := func(r report) bool { return !r.received.After(reorganized) }
	var last *report // webhook
	for i, r := range reports {
		if final(r.status) && !excused(r) {
			if r.status != end.status {
				complain("%v, but it ended as %s", r, end.status)
			} else if r.hash != end.hash {
				complain("%v, but it ended with the hash %s", r, end.hash)
			}
		}
		if r.source == "webhook" {
			switch {
			case r.revision > end.revision:
				complain("%v, but the last revision is %d", r, end.revision)
			case last != nil && r.revision <= last.revision:
				complain("%v after %v: the revision does not rise", r, *last)
			case last != nil && goesBack(last.status, r.status) && !excused(*last):
				complain("%v after %v", r, *last)
			}
			last = &reports[i]
			continue
		}
		for _, before := range reports[:i] {
			if before.received.Before(r.asked) && goesBack(before.status, r.status) && !excused(before) {
				complain("%v, asked at %s, after %v", r, r.asked.Format("15:04:05.000"), before)
			}
		}
	}
	switch {
	case last == nil:
		complain("no webhook arrived")
	case last.revision != end.revision || last.status != end.status || last.hash != end.hash:
		complain("the last webhook was %v, but it ended as %s with revision %d and hash %s", *last, end.status, end.revision, end.hash)
	}
	return wrong
}
