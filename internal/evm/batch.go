package evm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// A larger batch is tried again after a pause, which doubles from minProbePause to maxProbePause while larger batches
	// fail.
	minProbePause = 5 * time.Second
	maxProbePause = 10 * time.Minute
	// singles is how many calls run concurrently on an endpoint that accepts no batches.
	singles = 8
	// limitedTries is how many requests in a row the endpoint may refuse because of a rate limit, limitedPause apart, until a
	// query ends that has answers already, or that can go to no other endpoint.
	limitedTries = 3
	limitedPause = time.Second
)

// batchSize is how many calls a batch may have at an endpoint, as far as its answers show.
type batchSize struct {
	size    int           // what is sent now
	works   int           // the largest that was answered since the last failure of a smaller one
	changed time.Time     // when size was last changed
	raised  bool          // the last change was a raise
	pause   time.Duration // from changed to the next raise
}

// next returns the size of the next batch, at most most.
func (b *batchSize) next(most int) int {
	if b.size < most && time.Since(b.changed) >= b.pause {
		b.size, b.changed, b.raised = min(most, b.size+max(1, b.size/2)), time.Now(), true
	}
	return b.size
}

// answered records that a batch of n was answered.
func (b *batchSize) answered(n int) {
	if b.works = max(b.works, n); b.raised && n == b.size {
		b.raised, b.pause = false, minProbePause
	}
}

// failed records that a batch of n failed, although a single call was answered.
func (b *batchSize) failed(n int) {
	if n > b.size { // sent before another one failed
		return
	}
	if n <= b.works {
		b.works = 0
	}
	if b.raised {
		b.pause = min(maxProbePause, 2*b.pause)
	} else {
		b.pause = minProbePause
	}
	b.size, b.changed, b.raised = max(1, n/4, b.works), time.Now(), false
}

func (ep *endpoint) batchLimit() int {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.batches.next(ep.cfg.BatchSize)
}

func (ep *endpoint) batchAnswered(n int) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.batches.answered(n)
}

func (ep *endpoint) batchFailed(n int, why error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.batches.failed(n)
	ep.log.Debug("batch failed", "calls", n, "next", ep.batches.size, "err", why)
}

// query is a list of calls that an endpoint is asked until each has its answer.
//
// A batch may fail as a whole in any form: an HTTP status, a closed connection, one error for all, an error for each. That
// is a fault of the endpoint, or of the batch. The first of its calls, sent alone, decides which. If that is answered, the
// others are sent in smaller batches, and the endpoint remembers the size. Only otherwise the endpoint counts as failing.
//
// Calls that are refused because of a rate limit are sent again, as soon as the endpoint's pace allows it.
type query struct {
	ep      *endpoint
	calls   []call
	ordered bool // the calls are sends, which do not overtake each other
	patient bool // no other endpoint can be asked instead
	// settled is called for each call that has its answer.
	settled func(i int, a answer)

	left     []int           // indexes of calls without an answer, in order
	doubt    []bool          // for each call, whether the endpoint may have received it and has not answered
	earlier  map[int]error   // of calls that are sent again: their refusals, in words that need not be about the call
	answered map[string]bool // the methods, as in call.key, of calls that were answered
	failed   *failedBatch    // a batch whose cause of failure is not known yet
	faulty   bool            // a call failed alone as it did in a batch
	tries    int             // in a row that were refused because of a rate limit
	waited   time.Duration   // for the pace, in all
	sentAt   time.Time       // when the pace allowed the last request
}

// failedBatch is a batch that failed.
type failedBatch struct {
	size   int
	err    error
	alone  int            // the index of the call that is sent alone
	faults map[int]answer // the calls that failed, by index, if the endpoint has given an answer for each
}

func newQuery(ep *endpoint, calls []call, settled func(i int, a answer)) *query {
	q := &query{
		ep: ep, calls: calls, settled: settled, patient: len(ep.cfg.Endpoints) == 1,
		left: make([]int, len(calls)), doubt: make([]bool, len(calls)),
		earlier: map[int]error{}, answered: map[string]bool{},
	}
	for i := range q.left {
		q.left[i] = i
	}
	return q
}

// run asks until each call has its answer. It returns an error if the endpoint gives no answer; some calls may have theirs.
func (q *query) run(ctx context.Context) error {
	for len(q.left) > 0 {
		if err := q.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// step sends one request, or some single calls at once.
func (q *query) step(ctx context.Context) error {
	if q.tries > 0 {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < limitedPause {
			return q.refused(&RateLimitError{Endpoint: q.ep.name, RetryAfter: limitedPause, Reason: "it refused the calls"})
		}
		select {
		case <-time.After(limitedPause):
		case <-ctx.Done():
			return &TransportError{Endpoint: q.ep.name, Err: ctx.Err()}
		}
	}
	size := min(q.ep.batchLimit(), len(q.left))
	single := size == 1
	switch {
	case q.failed != nil:
		size, single = 1, true
	case single && !q.ordered:
		size = min(singles, len(q.left))
	}
	n, err := q.admit(ctx, size)
	if err != nil {
		return q.refused(err)
	}
	q.sentAt = time.Now()
	chunk := slices.Clone(q.left[:n])
	if q.failed != nil {
		chunk[0] = q.failed.alone
	}
	calls := make([]call, n)
	for k, i := range chunk {
		calls[k] = q.calls[i]
	}
	if single || n == 1 {
		return q.sendSingles(ctx, chunk, calls)
	}
	return q.sendBatch(ctx, chunk, calls)
}

// errPaceBusy ends a wait for the pace.
var errPaceBusy = errors.New("other calls use up the endpoint's pace")

// admit waits until the endpoint's pace allows at least one of n calls, and returns how many may be sent. While other
// endpoints follow, the query waits for paceWindow in all.
func (q *query) admit(ctx context.Context, n int) (int, error) {
	k := reads
	if q.ordered {
		k = sends
	}
	if ctx.Value(othersFollow{}) == nil {
		return q.ep.admit(ctx, n, k)
	}
	// Some time is always left, so that a call is sent that need not wait.
	left := max(paceWindow-q.waited, 10*time.Millisecond)
	waiting, cancel := context.WithTimeoutCause(ctx, left, errPaceBusy)
	defer cancel()
	began := time.Now()
	granted, err := q.ep.admit(waiting, n, k)
	q.waited += time.Since(began)
	if err != nil && !isRateLimit(err) && errors.Is(context.Cause(waiting), errPaceBusy) {
		err = &RateLimitError{Endpoint: q.ep.name, RetryAfter: paceWindow, Reason: errPaceBusy.Error()}
	}
	return granted, err
}

func (q *query) sendBatch(ctx context.Context, chunk []int, calls []call) error {
	answers, ex := q.ep.exchange(ctx, calls, true)
	if ex.err != nil {
		q.lost(chunk, ex.err)
		limit, limited := errors.AsType[*RateLimitError](ex.err)
		switch {
		case ex.ended, isNotSent(ex.err):
			if ex.ended && ex.counts {
				q.ep.batchFailed(len(calls), ex.err) // a single call may take as long again
			}
			q.ep.record(calls, ex)
			return ex.err
		case limited && limit.RetryAfter > 0:
			q.ep.batchFailed(len(calls), ex.err)
			q.ep.limit(limit)
			return q.refused(limit)
		case limited:
			q.ep.pace.void(len(calls), q.sentAt)
		}
		q.failed = &failedBatch{size: len(calls), err: ex.err, alone: chunk[0]}
		return nil
	}
	q.ep.succeeded()
	failed := &failedBatch{size: len(calls), faults: map[int]answer{}}
	got := make([]answer, 0, len(calls)) // final
	var which []int
	var missing, refused int
	for k, i := range chunk {
		e, isError := errors.AsType[*RPCError](answers[k].err)
		switch {
		case errors.Is(answers[k].err, errMissing):
			missing++
			q.doubt[i] = true
			continue
		case isError && batchTooBig(e):
			missing++
			continue
		case isError && rateLimited(e):
			refused++
			continue
		}
		a := q.ep.judge(calls[k], answers[k])
		if IsNoAnswer(a.err) && !q.faulty {
			if failed.err == nil {
				failed.err, failed.alone = a.err, i
			}
			failed.faults[i], q.earlier[i] = a, a.err
			continue
		}
		got, which = append(got, a), append(which, i)
	}
	q.settle(which, got)
	switch {
	case len(failed.faults) > 0:
		q.failed = failed
	case missing == len(calls):
		q.failed = &failedBatch{size: len(calls), err: errMissing, alone: chunk[0]}
	case missing == 0 && refused == 0:
		q.ep.batchAnswered(len(calls))
	}
	if refused > 0 {
		q.partlyRefused(chunk, calls, answers, len(got) > 0)
	}
	return nil
}

// countsCalls reports whether a rate limit of some calls is about their number: the endpoint answers others of these
// methods, or did so recently. Otherwise the limit is about the method, and to send fewer calls does not help.
func (q *query) countsCalls(calls ...call) bool {
	methods := methodsOf(calls)
	return slices.ContainsFunc(methods, func(method string) bool { return q.answered[method] }) || q.ep.answeredRecently(methods)
}

// partlyRefused handles a batch of which some calls were refused because of a rate limit.
func (q *query) partlyRefused(chunk []int, calls []call, answers []answer, progress bool) {
	about := 0
	if !progress {
		q.tries++
	}
	var which []int
	var final []answer
	for k, i := range chunk {
		e, ok := errors.AsType[*RPCError](answers[k].err)
		switch {
		case !ok || !rateLimited(e):
		case q.countsCalls(calls[k]) && q.tries < limitedTries:
			about++
		default:
			which, final = append(which, i), append(final, q.ep.judge(calls[k], answers[k]))
		}
	}
	if about > 0 {
		q.ep.slowDown(about, q.sentAt)
	}
	q.settle(which, final)
}

// sendSingles sends calls one by one, concurrently if there are several.
func (q *query) sendSingles(ctx context.Context, chunk []int, calls []call) error {
	answers, exs := make([]answer, len(calls)), make([]exchanged, len(calls))
	var wg sync.WaitGroup
	for k := range calls {
		wg.Go(func() {
			var one []answer
			if one, exs[k] = q.ep.exchange(ctx, calls[k:k+1], false); exs[k].err == nil {
				answers[k] = q.ep.judge(calls[k], one[0])
			}
		})
	}
	wg.Wait()
	var which []int
	var got []answer
	var failure, limit error
	refused := 0
	for k, i := range chunk {
		switch err := exs[k].err; {
		case err == nil:
			q.ep.succeeded()
			which, got = append(which, i), append(got, answers[k])
		case isRateLimit(err):
			limit = err
			refused++
		default:
			q.lost(chunk[k:k+1], err)
			q.ep.record(calls[k:k+1], exs[k])
			failure = err
		}
	}
	if failed := q.failed; failed != nil && len(got) > 0 {
		q.failed = nil
		if fault := IsNoAnswer(got[0].err); fault && failed.faults != nil {
			// The calls fail alone, too.
			q.faulty = true
			delete(failed.faults, chunk[0])
			for i, a := range failed.faults {
				which, got = append(which, i), append(got, a)
			}
		} else {
			q.ep.batchFailed(failed.size, failed.err)
		}
	}
	q.settle(which, got)
	if failure != nil {
		return failure
	}
	if limit == nil {
		return nil
	}
	e, _ := errors.AsType[*RateLimitError](limit)
	again := e.RetryAfter == 0 && q.countsCalls(calls...)
	if again {
		q.ep.slowDown(refused, q.sentAt)
	}
	if len(got) > 0 {
		return nil
	}
	if q.tries++; again && q.tries < limitedTries && (q.patient || len(q.answered) > 0) {
		return nil
	}
	q.ep.limit(e)
	return q.refused(e)
}

// settle records final answers.
func (q *query) settle(which []int, answers []answer) {
	if len(which) == 0 {
		return
	}
	calls := make([]call, len(which))
	for k, i := range which {
		calls[k] = q.calls[i]
	}
	q.ep.recordAnswers(calls, answers)
	done := make(map[int]bool, len(which))
	for k, i := range which {
		done[i] = true
		if !IsNoAnswer(answers[k].err) {
			q.answered[calls[k].key()], q.tries = true, 0
		}
		q.settled(i, answers[k])
	}
	q.left = slices.DeleteFunc(q.left, func(i int) bool { return done[i] })
}

// refused ends the query because of a rate limit. If some calls have their answers, those count, and the others get the error.
func (q *query) refused(err error) error {
	if len(q.left) == len(q.calls) || !isRateLimit(err) {
		return err
	}
	for _, i := range q.left {
		q.settled(i, answer{err: err})
	}
	q.left = nil
	return nil
}

// lost records that a request got no answer, or none about its calls.
func (q *query) lost(chunk []int, err error) {
	if e, ok := errors.AsType[*batchRefusedError](err); ok && !e.unread && Classify(e.RPCError) == Unknown {
		for _, i := range chunk {
			q.earlier[i] = e.RPCError
		}
	}
	if e, ok := errors.AsType[*TransportError](err); ok && e.Sent {
		for _, i := range chunk {
			q.doubt[i] = true
		}
	}
}

func isNotSent(err error) bool {
	e, ok := errors.AsType[*TransportError](err)
	return ok && !e.Sent
}
