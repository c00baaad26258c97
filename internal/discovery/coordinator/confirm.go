package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// confirmer asks a quorum whether a term is still the latest. raft.VerifyLeader is not sufficient, because a heartbeat
// sent before the request can satisfy it.
//
// A node that reports the term T has not voted in a later one. Suppose that a majority of voters reports T, each asked
// after a request arrived. Then no later leader was elected before the request: its majority shares a node with ours,
// and that node would have entered the later term before it voted.
//
// All callers that wait when a round begins share it. A caller that arrives during a round waits for the next one. The
// nodes of the running round may have been asked before the caller arrived.
//
// A round asks only as many nodes as it needs, those that answered the last round first. It asks the others only if
// one fails or is slow. Every request costs the asked node as much as a caller's own.
type confirmer struct {
	ctx     context.Context // the leadership's
	term    uint64
	cluster string // its identity
	node    string
	raft    *raft.Raft
	peers   *peers
	timeout time.Duration
	hedge   time.Duration // delay after which a round asks the remaining nodes
	metrics *Metrics

	work sync.WaitGroup

	mu      sync.Mutex
	next    *confirmRound // collects callers; nil if none waits
	running bool
	closed  bool

	// The fields below belong to run.
	fastest []raft.ServerID // nodes that answered the last round
	rounds  uint
}

// fullPollEvery is how often a round asks all nodes, so that the fastest ones are found again.
const fullPollEvery = 64

// behindPoll is how often a voter in an earlier term is asked again. The leader's heartbeats are about as frequent.
const behindPoll = 10 * time.Millisecond

type confirmRound struct {
	done chan struct{}
	err  error
}

// confirm implements Leadership.Confirm. ctx limits the wait, not the round.
func (c *confirmer) confirm(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errLostLeadership
	}
	if c.next == nil {
		c.next = &confirmRound{done: make(chan struct{})}
	}
	round := c.next
	if !c.running {
		c.running = true
		c.work.Go(c.run)
	}
	c.mu.Unlock()
	select {
	case <-round.done:
		return round.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close refuses new callers and waits for the goroutines. The leadership's context has ended by then.
func (c *confirmer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.work.Wait()
}

// run performs rounds until no caller waits.
func (c *confirmer) run() {
	for {
		c.mu.Lock()
		round := c.next
		c.next = nil
		if round == nil {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		round.err = c.ask()
		c.metrics.confirmations.Inc()
		close(round.done)
	}
}

// ask performs one round.
func (c *confirmer) ask() error {
	if c.raft.State() != raft.Leader || c.raft.CurrentTerm() != c.term {
		return errLostLeadership
	}
	var others []raft.Server
	voters, self := 0, 0
	for _, s := range c.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if string(s.ID) == c.node {
			self = 1 // a leader without a vote needs a majority of other nodes
		} else {
			others = append(others, s)
		}
	}
	need := voters/2 + 1 - self
	if need <= 0 {
		return nil
	}
	return c.quorum(others, need)
}

// quorum asks the voters for need confirmations.
func (c *confirmer) quorum(others []raft.Server, need int) error {
	// Voters that answered the last round come first.
	slices.SortStableFunc(others, func(a, b raft.Server) int {
		return cmp.Compare(slices.Index(c.fastest, b.ID), slices.Index(c.fastest, a.ID))
	})
	c.fastest = c.fastest[:0]

	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	type answer struct {
		from raft.ServerID
		err  error
	}
	answers := make(chan answer, len(others))
	var asked sync.WaitGroup
	pending := 0
	askMore := func(n int) {
		for _, s := range others[:n] {
			asked.Go(func() { answers <- answer{s.ID, c.askPeer(ctx, s)} })
		}
		others = others[n:]
		pending += n
	}
	// The slower nodes are not awaited, but their calls are not canceled, because canceling resets streams needlessly.
	defer func() {
		c.work.Go(func() {
			asked.Wait()
			cancel()
		})
	}()
	hedge := time.NewTimer(c.hedge)
	defer hedge.Stop()
	first := need
	if c.rounds++; c.rounds%fullPollEvery == 0 {
		first = len(others)
	}
	askMore(first)
	for pending > 0 {
		select {
		case <-hedge.C:
			askMore(len(others))
			continue
		case a := <-answers:
			pending--
			switch {
			case a.err == nil:
				c.fastest = append(c.fastest, a.from)
				if need--; need == 0 {
					return nil
				}
			case errors.Is(a.err, errLostLeadership):
				return a.err
			case pending+len(others) < need:
				return c.unconfirmed()
			default:
				askMore(len(others))
			}
		}
	}
	return c.unconfirmed()
}

// unconfirmed returns why a quorum did not confirm the term.
func (c *confirmer) unconfirmed() error {
	if c.ctx.Err() != nil {
		return errLostLeadership
	}
	return errNoQuorum
}

// askPeer returns nil once the voter has reported this term. A voter may not have recorded the leader's election yet.
// It could not vote against this leader either, but it does not confirm the term. It receives the term with the leader's
// next heartbeat.
func (c *confirmer) askPeer(ctx context.Context, s raft.Server) error {
	client, err := c.peers.client(s)
	if err != nil {
		return err
	}
	for {
		resp, err := client.ConfirmTerm(ctx, &rollcallv1.ConfirmTermRequest{Term: c.term})
		switch {
		case err != nil:
			return err
		case resp.Node != string(s.ID), resp.Cluster != c.cluster:
			return fmt.Errorf("%s of cluster %q answers in place of %s", resp.Node, resp.Cluster, s.ID)
		case resp.Term > c.term:
			return errLostLeadership
		case resp.Term == c.term:
			return nil
		}
		if err := sleep(ctx, behindPoll); err != nil {
			return err
		}
	}
}
