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
	// commandBudget is the maximum size in bytes of operations that share one Raft entry. It limits the wait of a
	// single write. A larger operation has an entry of its own.
	commandBudget = 256 << 10
	// inFlight is how many of this proposer's entries Raft holds at once: one is written to disk while the next is
	// collected. With commandBudget and MaxBytesPerCall it limits an AppendEntries message, which must not delay
	// heartbeats.
	inFlight = 2
	// queueBudget is how many bytes of operations may be queued: a dozen of the largest calls. A healthy disk commits them
	// in one to two seconds. A longer queue would only add waiting time and memory.
	queueBudget = 64 << 20
)

// proposal is a queued or proposed operation.
type proposal struct {
	op    *rollcallv1.Operation
	size  int
	after func() // called once the outcome is known, even if the caller has left

	taken, left bool // from the queue; by its caller. Guarded by proposer.mu

	done   chan struct{}
	result fsm.Result
	err    error
}

func (p *proposal) finish(r fsm.Result, err error) {
	p.result, p.err = r, err
	p.after()
	close(p.done)
}

// proposer turns operations into Raft entries for one leadership. While entries are being written to disk, new
// operations are queued and share the next entry. Under load many operations cost one write.
//
// It has no goroutine of its own. A caller that finds Raft free proposes the queue, including its own operation. Other
// callers wait until another caller proposes their operations. A single caller therefore pays for no hand-over between
// goroutines, each of which costs as much as a loopback message.
type proposer struct {
	raft     *raft.Raft
	watchdog *watchdog
	metrics  *Metrics
	// check refuses an operation that a voter does not support.
	check func(version uint32) error

	// order is held while a batch is taken and passed to Raft, so that the log has the order of the queue.
	order sync.Mutex

	mu     sync.Mutex
	queue  []*proposal
	queued int // bytes in the queue, without proposals whose caller has left
	left   int // proposals in the queue whose caller has left
	busy   int // entries that Raft holds, at most inFlight
}

func newProposer(r *raft.Raft, w *watchdog, m *Metrics, check func(version uint32) error) *proposer {
	return &proposer{raft: r, watchdog: w, metrics: m, check: check}
}

// propose passes an operation to Raft and waits for its result. It returns errNotEstablished or errBusy if the
// operation was certainly not done: errBusy if the queue is full or ctx ended before the operation's turn. It returns
// *unknownError if the operation may be done. It calls after exactly once, when Raft has finished the operation, even
// if the caller has stopped waiting. Raft ends every wait, at the latest with the leadership, except on its shutdown.
// Raft then never answers operations in its channels, and the proposing caller waits until the process ends.
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

// leave withdraws a proposal whose caller no longer waits. It returns false if Raft already has the proposal.
func (p *proposer) leave(pr *proposal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr.taken {
		return false
	}
	pr.left, pr.op = true, nil
	p.queued -= pr.size
	// Proposals are not removed one by one, because that takes long if many callers leave at once.
	if p.left++; p.left > len(p.queue)/2 {
		p.dropLeft()
	}
	return true
}

// dropLeft removes proposals without a caller from the queue. p.mu is held.
func (p *proposer) dropLeft() {
	p.queue = slices.DeleteFunc(p.queue, func(pr *proposal) bool { return pr.left })
	p.left = 0
}

// applyBatch passes the next entry through Raft. It leaves operations queued in the meantime to a goroutine, because
// its caller has its own answer by then.
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

// nextBatch removes the operations of the next entry from the queue.
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

// submit passes a batch to Raft. It returns a function that waits for the result and answers the callers.
func (p *proposer) submit(batch []*proposal) (wait func()) {
	if len(batch) == 0 {
		return func() {} // another caller has proposed it
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

// applyError maps Raft's errors to errNotEstablished, certainly not done, and *unknownError.
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
