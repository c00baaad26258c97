package sender

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// signQueue is one key's queue of jobs to sign. It has its own goroutines, which end when it is empty, so a signer that
// hangs delays only its own key. The Sender's mutex guards it.
type signQueue struct {
	jobs  []*Job
	known map[jobID]bool // queued, or being signed
	busy  int            // running goroutines
}

// jobID identifies the bytes that a job produces; duplicate jobs have the same.
type jobID struct {
	tx     uuid.UUID
	number int
	nonce  uint64
}

func (j *Job) id() jobID { return jobID{j.Tx.ID, j.Number, *j.Tx.Nonce} }

// Sign queues jobs without waiting. Duplicate jobs are ignored: the tracker submits unsigned jobs again every second. So
// there are never more jobs than keys may have pending transactions. After Run it drops them.
func (s *Sender) Sign(jobs ...*Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	for _, j := range jobs {
		d := s.queues[j.Tx.From]
		if d == nil {
			d = &signQueue{known: map[jobID]bool{}}
			s.queues[j.Tx.From] = d
		}
		if d.known[j.id()] {
			continue
		}
		d.known[j.id()] = true
		d.jobs = append(d.jobs, j)
		s.startWorker(d)
	}
}

// startWorker starts one more goroutine for a queue, up to the limit. s.mu is held.
func (s *Sender) startWorker(d *signQueue) {
	if s.begin != nil && d.busy < s.cfg.Signers {
		d.busy++
		s.signers.Go(func() { s.begin(d) })
	}
}

// startSigning signs the jobs queued before Run, and later ones, until ctx ends.
func (s *Sender) startSigning(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin = func(d *signQueue) {
		for j := s.next(d, nil); j != nil && ctx.Err() == nil; j = s.next(d, j) {
			s.sign(ctx, j)
		}
	}
	for _, d := range s.queues {
		for range d.jobs {
			s.startWorker(d)
		}
	}
}

// stopSigning rejects further jobs, and returns when all signing goroutines have ended.
func (s *Sender) stopSigning() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.signers.Wait()
}

// next returns a queue's next job, nil if it is empty. done is the finished job, which may be queued again from here on.
func (s *Sender) next(d *signQueue, done *Job) *Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done != nil {
		delete(d.known, done.id())
	}
	if len(d.jobs) == 0 {
		d.busy--
		return nil
	}
	j := d.jobs[0]
	d.jobs[0] = nil
	d.jobs = d.jobs[1:]
	return j
}

// sign signs a job's attempt and passes it on.
func (s *Sender) sign(ctx context.Context, j *Job) {
	if err := s.signOne(ctx, j); err != nil {
		s.cfg.Metrics.lost.WithLabelValues("sign").Inc()
		s.cfg.Log.WarnContext(tracing.Extract(ctx, j.Tx.Traceparent), "transaction could not be signed", "tx", j.Tx.ID, "key", j.Tx.From, "nonce", *j.Tx.Nonce, "err", err)
		return
	}
	s.signed <- j
}

// signOne signs the attempt.
func (s *Sender) signOne(ctx context.Context, j *Job) error {
	span := s.span(ctx, j.Tx)
	defer span.End()
	if j.Bid.MaxFee == nil {
		fees, err := s.cfg.Chain.Fees(ctx)
		if err != nil {
			return fmt.Errorf("ask for fees: %w", err)
		}
		j.Bid = s.first(j.Tx, j.Purpose, fees)
	}
	if j.Gas == 0 {
		j.Gas = s.gasLimit(ctx, j.Tx, j.Purpose, nil)
	}
	attempt, err := s.Attempt(ctx, j)
	j.attempt = attempt
	if err == nil {
		span.SetAttributes(attribute.String("rollcall.hash", attempt.Hash.Hex()))
	}
	return err
}

// span starts a span below the span of the request that posted the transaction. If the caller does not sample the trace, no span is
// exported.
func (s *Sender) span(ctx context.Context, tx *relayer.Transaction) trace.Span {
	_, span := s.cfg.Tracer.Start(tracing.Extract(ctx, tx.Traceparent), "sign", trace.WithAttributes(
		attribute.String("rollcall.relayer_transaction", tx.ID.String()), attribute.String("rollcall.key", tx.From.Hex()),
		attribute.Int64("rollcall.nonce", int64(*tx.Nonce))))
	return span
}
