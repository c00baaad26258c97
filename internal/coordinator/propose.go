package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// commandBudget is how many bytes of operations share one Raft entry. It bounds what a single write waits
	// for; a larger operation goes alone.
	commandBudget = 256 << 10
	// inFlight is how many entries of ours Raft holds at once: one on its way to disk while the next collects.
	// With commandBudget and MaxBytesPerCall it bounds an AppendEntries message, which must not delay heartbeats.
	inFlight = 2
)

// proposal is an operation on its way through Raft.
type proposal struct {
	op    *rollcallv1.Operation
	size  int
	after func() // called once the outcome is known, also when the caller has left

	done   chan struct{}
	result fsm.Result
	err    error
}

func (p *proposal) finish(r fsm.Result, err error) {
	p.result, p.err = r, err
	p.after()
	close(p.done)
}

// proposer turns operations into Raft entries for one leadership. While an entry is on its way to disk, the
// operations that come meanwhile collect and share the next: under load many operations cost one write.
type proposer struct {
	raft     *raft.Raft
	watchdog *watchdog
	metrics  *Metrics
	// check refuses what a voter would not understand.
	check func(version uint32) error

	mu     sync.Mutex
	queue  []*proposal
	closed bool
	wake   chan struct{}
}

func newProposer(r *raft.Raft, w *watchdog, m *Metrics, check func(version uint32) error) *proposer {
	return &proposer{raft: r, watchdog: w, metrics: m, check: check, wake: make(chan struct{}, 1)}
}

// propose hands an operation to Raft and waits for its result. It fails with errNotEstablished when it was
// certainly not done and with *unknownError when it may be, also when ctx ends meanwhile. after is called exactly
// once, when Raft is done with the operation: not before an outcome that the caller did not wait for.
func (p *proposer) propose(ctx context.Context, op *rollcallv1.Operation, after func()) (fsm.Result, error) {
	if err := p.check(sinceVersion(op)); err != nil {
		after()
		return fsm.Result{}, err
	}
	pr := &proposal{op: op, size: proto.Size(op), after: after, done: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		after()
		return fsm.Result{}, errNotEstablished
	}
	p.queue = append(p.queue, pr)
	p.mu.Unlock()
	p.signal()
	select {
	case <-pr.done:
		return pr.result, pr.err
	case <-ctx.Done():
		return fsm.Result{}, &unknownError{context.Cause(ctx)}
	}
}

func (p *proposer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run works until ctx, the leadership, ends. What is still queued then was certainly not done.
func (p *proposer) run(ctx context.Context) {
	slots := make(chan struct{}, inFlight)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() {
		p.mu.Lock()
		p.closed = true
		rest := p.queue
		p.queue = nil
		p.mu.Unlock()
		for _, pr := range rest {
			pr.finish(fsm.Result{}, errNotEstablished)
		}
	}()
	for {
		// The slot first, the batch second: what comes while all slots are taken shares an entry.
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		batch := p.take()
		for batch == nil {
			select {
			case <-p.wake:
			case <-ctx.Done():
				return
			}
			batch = p.take()
		}
		done, err := p.submit(batch)
		if err != nil {
			<-slots
			continue
		}
		wg.Go(func() {
			done()
			<-slots
		})
	}
}

// take removes the next entry's worth of operations from the queue.
func (p *proposer) take() []*proposal {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size := 0, 0
	for n < len(p.queue) && n < fsm.MaxOperations {
		if size += p.queue[n].size; n > 0 && size > commandBudget {
			break
		}
		n++
	}
	if n == 0 {
		return nil
	}
	batch := p.queue[:n:n]
	p.queue = p.queue[n:]
	return batch
}

// submit gives a batch to Raft and returns what waits for it and answers. The order of submits is the order of
// the log.
func (p *proposer) submit(batch []*proposal) (wait func(), err error) {
	cmd := &rollcallv1.Command{Operations: make([]*rollcallv1.Operation, len(batch))}
	size := 0
	for i, pr := range batch {
		cmd.Operations[i] = pr.op
		size += pr.size
	}
	data, err := proto.Marshal(cmd)
	if err != nil {
		for _, pr := range batch {
			pr.finish(fsm.Result{}, fmt.Errorf("encode command: %w", err))
		}
		return nil, err
	}
	pending := p.watchdog.begin(size)
	p.metrics.commandOps.Observe(float64(len(batch)))
	future := p.raft.Apply(data, 0)
	return func() {
		err := future.Error()
		pending.end(err)
		if err != nil {
			err = applyError(err)
			for _, pr := range batch {
				pr.finish(fsm.Result{}, err)
			}
			return
		}
		results := future.Response().([]fsm.Result)
		for i, pr := range batch {
			pr.finish(results[i], results[i].Err)
		}
	}, nil
}

// applyError sorts Raft's refusals into certainly not done and unknown.
func applyError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		return errNotEstablished
	default:
		return &unknownError{err}
	}
}

// establish commits the entry that opens an epoch.
func establish(r *raft.Raft, w *watchdog, op *rollcallv1.LeaderEstablished, timeout time.Duration) (fsm.Result, error) {
	data, err := proto.Marshal(&rollcallv1.Command{Operations: []*rollcallv1.Operation{
		{Kind: &rollcallv1.Operation_LeaderEstablished{LeaderEstablished: op}},
	}})
	if err != nil {
		return fsm.Result{}, err
	}
	pending := w.begin(len(data))
	future := r.Apply(data, timeout)
	err = future.Error()
	pending.end(err)
	if err != nil {
		return fsm.Result{}, err
	}
	return future.Response().([]fsm.Result)[0], nil
}
