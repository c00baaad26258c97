package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// queueBudget is how many bytes of operations may wait for their turn: a dozen of the largest calls, and what a
	// disk that keeps up commits in a second or two. More would only wait longer, in memory.
	queueBudget = 64 << 20
)

// proposal is an operation on its way through Raft.
type proposal struct {
	op    *rollcallv1.Operation
	size  int
	after func() // called once the outcome is known, also when the caller has left

	taken, left bool // from the queue, by its caller; proposer.mu guards them

	done   chan struct{}
	result fsm.Result
	err    error
}

func (p *proposal) finish(r fsm.Result, err error) {
	p.result, p.err = r, err
	p.after()
	close(p.done)
}

// proposer turns operations into Raft entries for one leadership. While entries are on their way to disk, the
// operations that come meanwhile collect and share the next: under load many operations cost one write.
//
// It has no goroutine of its own. A caller that finds Raft free takes what has collected, its own operation
// included, through Raft itself; one that does not waits for somebody else to take it along. So a lone caller
// pays for no hand-over between goroutines, each of which costs as much as a message on loopback.
type proposer struct {
	raft     *raft.Raft
	watchdog *watchdog
	metrics  *Metrics
	// check refuses what a voter would not understand.
	check func(version uint32) error

	// order is held from taking a batch to giving it to Raft: the order of the queue is the order of the log.
	order sync.Mutex

	mu     sync.Mutex
	queue  []*proposal
	queued int // bytes in the queue, without those whose caller has left
	left   int // proposals in the queue whose caller has left
	busy   int // entries that Raft holds, at most inFlight
}

func newProposer(r *raft.Raft, w *watchdog, m *Metrics, check func(version uint32) error) *proposer {
	return &proposer{raft: r, watchdog: w, metrics: m, check: check}
}

// propose hands an operation to Raft and waits for its result. It fails with errNotEstablished or errBusy when it was
// certainly not done, the latter when too much waits already or ctx ended before its turn, and with *unknownError when
// it may be. after is called exactly once, when Raft is done with the operation: not before an outcome that the caller
// did not wait for. Raft ends every wait, at the latest with the leadership, unless it is shut down: of what lies in its
// channels then it says nothing any more, and the caller that carried it waits until the process ends.
func (p *proposer) propose(ctx context.Context, op *rollcallv1.Operation, after func()) (fsm.Result, error) {
	if err := p.check(sinceVersion(op)); err != nil {
		after()
		return fsm.Result{}, err
	}
	pr := &proposal{op: op, size: proto.Size(op), after: after, done: make(chan struct{})}
	p.mu.Lock()
	if p.queued > 0 && p.queued+pr.size > queueBudget {
		p.mu.Unlock()
		after()
		return fsm.Result{}, errBusy
	}
	p.queue = append(p.queue, pr)
	p.queued += pr.size
	free := p.busy < inFlight
	if free {
		p.busy++
	}
	p.mu.Unlock()
	if free {
		p.applyBatch()
	}
	select {
	case <-pr.done:
		return pr.result, pr.err
	case <-ctx.Done():
		if p.leave(pr) {
			after()
			return fsm.Result{}, fmt.Errorf("%w: %w", errBusy, context.Cause(ctx))
		}
		return fsm.Result{}, &unknownError{context.Cause(ctx)}
	}
}

// leave withdraws a proposal whose caller does not wait any more; false when it is with Raft already.
func (p *proposer) leave(pr *proposal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr.taken {
		return false
	}
	pr.left, pr.op = true, nil
	p.queued -= pr.size
	// Not one by one, which would take long where many leave at once.
	if p.left++; p.left > len(p.queue)/2 {
		p.dropLeft()
	}
	return true
}

// dropLeft takes out of the queue what nobody waits for. p.mu is held.
func (p *proposer) dropLeft() {
	p.queue = slices.DeleteFunc(p.queue, func(pr *proposal) bool { return pr.left })
	p.left = 0
}

// applyBatch takes the next entry through Raft, and leaves what has collected meanwhile to a goroutine: the caller has
// its own answer by then.
func (p *proposer) applyBatch() {
	p.order.Lock()
	wait := p.submit(p.nextBatch())
	p.order.Unlock()
	wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.busy--
		return
	}
	go p.applyBatch()
}

// nextBatch removes the next entry's worth of operations from the queue.
func (p *proposer) nextBatch() []*proposal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left > 0 {
		p.dropLeft()
	}
	n, size := 0, 0
	for n < len(p.queue) && n < fsm.MaxOperations {
		next := p.queue[n]
		if n > 0 && size+next.size > commandBudget {
			break
		}
		next.taken = true
		size += next.size
		n++
	}
	p.queued -= size
	if n == 0 {
		return nil
	}
	batch := p.queue[:n:n]
	p.queue = p.queue[n:]
	return batch
}

// submit gives a batch to Raft and returns what waits for it and answers.
func (p *proposer) submit(batch []*proposal) (wait func()) {
	if len(batch) == 0 {
		return func() {} // somebody else has taken it along
	}
	answer := func(results []fsm.Result, err error) {
		for i, pr := range batch {
			if err != nil {
				pr.finish(fsm.Result{}, err)
			} else {
				pr.finish(results[i], results[i].Err)
			}
		}
	}
	cmd := &rollcallv1.Command{Operations: make([]*rollcallv1.Operation, len(batch))}
	size := 0
	for i, pr := range batch {
		cmd.Operations[i] = pr.op
		size += pr.size
	}
	data, err := proto.Marshal(cmd)
	if err != nil {
		return func() { answer(nil, fmt.Errorf("encode command: %w", err)) }
	}
	pending := p.watchdog.begin(size)
	p.metrics.commandOps.Observe(float64(len(batch)))
	future := p.raft.Apply(data, 0)
	return func() {
		err := future.Error()
		pending.end(err)
		if err != nil {
			answer(nil, applyError(err))
			return
		}
		answer(future.Response().([]fsm.Result), nil)
	}
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
