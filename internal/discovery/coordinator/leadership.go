package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// establishTimeout is how long the leader-established entry may wait to enter Raft's queue.
	establishTimeout = 5 * time.Second
	// leadAttempts is how many failures of the leader's work in a row end the process.
	leadAttempts = 5
	// leadSettled is the run time after which a failure counts as the first again.
	leadSettled = time.Minute
	// maxEpochJump is how far above its own epoch a leader accepts a reported epoch: more than any cluster has leaders
	// while Redis cannot be reached. A restored cluster begins at the time in milliseconds, so a leader of the log before
	// the restore does not follow its epochs.
	maxEpochJump = 1 << 20
)

// leader is the node's established leadership: one epoch, one context.
type leader struct {
	Leadership
	ctx            context.Context // ends with the epoch
	since          time.Time
	confirmer      *confirmer
	proposer       *proposer
	ownerSessions  *ownerSessions
	promotionQueue promotionQueue
	// failure is the last failure of Config.Lead; nil before the first.
	failure atomic.Pointer[error]
	// leadDone is closed when Config.Lead has finally returned.
	leadDone chan struct{}
	end      context.CancelFunc
}

// lead runs the leadership as a function whenever this node leads. Exactly one runs at a time: the next begins after
// the previous one has returned, even if leadership was lost and regained between two checks.
func (n *Node) lead(ctx context.Context, r *raft.Raft, notify <-chan bool) error {
	g, ctx := errgroup.WithContext(ctx)
	var (
		mu      sync.Mutex
		leading bool
		changes int
	)
	wake := make(chan struct{}, 1)
	g.Go(func() error { // Raft blocks until the notification is received, so this loop does nothing else
		for {
			select {
			case <-ctx.Done():
				return nil
			case is := <-notify:
				mu.Lock()
				leading = is
				changes++
				mu.Unlock()
				select {
				case wake <- struct{}{}:
				default:
				}
			}
		}
	})
	g.Go(func() error {
		var (
			now  *leadershipRun
			seen int
		)
		for {
			select {
			case <-ctx.Done():
				// The leader's work ends first, including its running checks. Writes are served until another node has
				// taken over.
				if l := n.leader.Load(); l != nil {
					n.withStopTimeout("the leader's work", func() { <-l.leadDone })
				}
				n.handOver(r)
				var err error
				n.withStopTimeout("the end of the leadership", func() { err = now.end(context.Cause(ctx)) })
				return err
			case err := <-now.ended():
				if now = nil; err != nil {
					return err
				}
				continue
			case <-wake:
			}
			mu.Lock()
			is, count := leading, changes
			mu.Unlock()
			if count == seen {
				continue
			}
			seen = count
			err := now.end(errLostLeadership)
			if now = nil; err != nil {
				return err
			}
			if is {
				now = startLeadershipRun(context.WithoutCancel(ctx), func(runCtx context.Context) error {
					return n.runEpochs(runCtx, ctx, r)
				})
			}
		}
	})
	return g.Wait()
}

// currentLeader returns the established leadership, or nil. It ignores an ended leadership, although its work may
// still be finishing its last checks.
func (n *Node) currentLeader() *leader {
	if l := n.leader.Load(); l != nil && l.ctx.Err() == nil {
		return l
	}
	return nil
}

// leadershipRun is a running leadership; nil if there is none.
type leadershipRun struct {
	cancel context.CancelCauseFunc
	done   chan error
}

func startLeadershipRun(ctx context.Context, body func(context.Context) error) *leadershipRun {
	ctx, cancel := context.WithCancelCause(ctx)
	t := &leadershipRun{cancel: cancel, done: make(chan error, 1)}
	go func() {
		defer cancel(nil)
		t.done <- body(ctx)
	}()
	return t
}

// end cancels the leadership and waits for its work to return.
func (r *leadershipRun) end(cause error) error {
	if r == nil {
		return nil
	}
	r.cancel(cause)
	return <-r.done
}

// ended returns the channel for the result of a leadership that returned by itself.
func (r *leadershipRun) ended() <-chan error {
	if r == nil {
		return nil
	}
	return r.done
}

// runEpochs opens an epoch, runs it, and opens another one if a higher epoch is found outside Raft. ctx ends with the
// leadership, which lasts one of Raft's terms. serving ends with the node's service, which ends first when the node stops.
func (n *Node) runEpochs(ctx, serving context.Context, r *raft.Raft) error {
	var atLeast uint64
	for ctx.Err() == nil {
		l, err := n.establish(ctx, r, atLeast)
		switch {
		case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrRaftShutdown):
			return nil // Raft's notification follows, or has already arrived
		case err != nil:
			return err
		}
		higher, err := n.runEpoch(serving, l, r)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		atLeast = higher + 1
	}
	return nil
}

// establish commits the entry that opens an epoch. Once applied, it is also the barrier: the directory holds all
// writes that earlier leaders acknowledged.
func (n *Node) establish(ctx context.Context, r *raft.Raft, atLeast uint64) (*leader, error) {
	started := time.Now()
	op := &rollcallv1.LeaderEstablished{Node: n.cfg.ID, AtLeast: atLeast}
	if n.machine.State().Cluster() == "" {
		op.Cluster = n.identity()
	}
	var res fsm.Result
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		var err error
		res, err = establish(r, n.watchdog, op, establishTimeout)
		switch {
		case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
			return struct{}{}, err // this node still leads
		}
		return struct{}{}, permanent(err)
	}, backoff.WithBackOff(retryPolicy()), backoff.WithMaxElapsedTime(0))
	if err != nil {
		if ctx.Err() != nil {
			return nil, raft.ErrLeadershipLost
		}
		return nil, err
	}

	l := &leader{since: time.Now(), leadDone: make(chan struct{}), promotionQueue: newPromotionQueue()}
	l.ctx, l.end = context.WithCancel(ctx)
	l.confirmer = &confirmer{
		ctx: l.ctx, term: res.Term, cluster: n.identity(), node: n.cfg.ID, raft: r, peers: n.peers,
		timeout: n.cfg.Timing.Transport, hedge: n.cfg.Timing.Lease / 10, metrics: n.metrics,
	}
	l.proposer = newProposer(r, n.watchdog, n.metrics, func(version uint32) error { return n.checkCommandVersion(r, version) })
	l.ownerSessions = newOwnerSessions(l.since, n.cfg.GoneAfter)
	l.Leadership = Leadership{
		Cluster: n.machine.State().Cluster(), Node: n.cfg.ID, Epoch: res.Epoch, Term: res.Term,
		Directory: n.machine, Confirm: l.confirmer.confirm, Lease: n.cfg.Timing.Lease, Ended: l.ctx.Done(),
	}
	n.metrics.leaderChanges.Inc()
	n.log.Info("leader established", "epoch", res.Epoch, "term", res.Term, "cluster", l.Cluster,
		"services", n.machine.State().Len(), "duration", time.Since(started))
	return l, nil
}

// runEpoch serves an epoch until its context ends, or until the leader's work finds a higher epoch.
func (n *Node) runEpoch(serving context.Context, l *leader, r *raft.Raft) (higher uint64, err error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.confirmer.close()
	defer l.end()
	n.leader.Store(l)
	defer n.leader.Store(nil)
	defer func() { n.log.Info("leadership ended", "epoch", l.Epoch, "cause", context.Cause(l.ctx)) }()
	wg.Go(func() { n.reconcileStaticServices(l) })

	higher, err = n.runLead(serving, l, r)
	close(l.leadDone)
	if higher == 0 && err == nil {
		<-l.ctx.Done() // the node is stopping, and serves until another node leads
	}
	return higher, err
}

// runLead runs Config.Lead and retries it with backoff, because a leader whose work does not run is worse than none.
// It returns a higher epoch that Lead found, or 0 and nil when the epoch or the node's service ends.
func (n *Node) runLead(serving context.Context, l *leader, r *raft.Raft) (higher uint64, err error) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	defer context.AfterFunc(serving, func() { cancel(context.Cause(serving)) })()
	policy := retryPolicy()
	for failures := 0; ; {
		started := time.Now()
		higher, err := n.cfg.Lead(ctx, l.Leadership)
		switch {
		case ctx.Err() != nil:
			return 0, nil
		case higher > 0 && higher-l.Epoch < maxEpochJump:
			return higher, nil
		case higher > 0:
			successor := n.checkSuccessor(ctx, r, higher)
			switch {
			case ctx.Err() != nil:
				return 0, nil
			case successor != nil:
				return 0, successor
			}
			failures = 0 // another leader would fail the same way
			err = fmt.Errorf("epoch %d is stored in Redis, and no leader after %d can have opened it; if a peer was restored, stop this coordinator, empty its data folder, and start it; "+
				"otherwise look at what Redis holds, and then have this cluster claim it again: rollcall mirror take-over --force",
				higher, l.Epoch)
		case err == nil:
			err = errors.New("it returned although the leadership stays")
		}
		l.failure.Store(&err)
		if time.Since(started) > leadSettled {
			failures = 0
			policy.Reset()
		}
		if failures++; failures == leadAttempts {
			return 0, fmt.Errorf("the leader's work failed %d times in a row, last with: %w", failures, err)
		}
		wait := policy.NextBackOff()
		n.log.Error("leader's work failed", "epoch", l.Epoch, "err", err, "attempt", failures, "retry_in", wait)
		select {
		case <-ctx.Done():
			return 0, nil
		case <-time.After(wait):
		}
	}
}

// retryPolicy returns the backoff between attempts of a leader: 50 ms to 2 s, with jitter.
func retryPolicy() *backoff.ExponentialBackOff {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval = 50*time.Millisecond, 2*time.Second
	return p
}

func permanent(err error) error {
	if err == nil {
		return nil
	}
	return backoff.Permanent(err)
}
