package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// confirmer asks a quorum whether a term still stands. raft.VerifyLeader will not do: a heartbeat sent before
// the request can satisfy it.
//
// A node that reports the term T has not voted in a later one. While a majority of voters reports T, each asked
// after a request came, no later leader can have been elected before the request: its majority shares a node
// with ours, and that node would have moved to the later term before it voted.
//
// All callers that wait when a round begins share it. A caller that comes during a round waits for the next,
// since that round may have been asked before the caller came.
type confirmer struct {
	term    uint64
	cluster string
	node    string
	raft    *raft.Raft
	peers   *peers
	timeout time.Duration
	metrics *Metrics

	mu      sync.Mutex
	next    *confirmRound // collects callers; nil when nobody waits
	running bool
}

type confirmRound struct {
	done chan struct{}
	err  error
}

// confirm is Leadership.Confirm. ctx bounds the wait, not the round.
func (c *confirmer) confirm(ctx context.Context) error {
	c.mu.Lock()
	if c.next == nil {
		c.next = &confirmRound{done: make(chan struct{})}
	}
	round := c.next
	if !c.running {
		c.running = true
		go c.run()
	}
	c.mu.Unlock()
	select {
	case <-round.done:
		return round.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run performs rounds until nobody waits for one.
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
			self = 1 // a leader that was voted out counts on others alone
		} else {
			others = append(others, s)
		}
	}
	need := voters/2 + 1 - self
	if need <= 0 {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	type answer struct{ err error }
	answers := make(chan answer, len(others))
	for _, s := range others {
		go func() { answers <- answer{c.askPeer(ctx, s)} }()
	}
	// The slower nodes are not waited for, but not broken off either: cancelling resets streams for nothing.
	pending := len(others)
	defer func() {
		go func() {
			for range pending {
				<-answers
			}
			cancel()
		}()
	}()
	for pending > 0 {
		err := (<-answers).err
		pending--
		if errors.Is(err, errLostLeadership) {
			return err
		}
		if err == nil {
			if need--; need == 0 {
				return nil
			}
		}
		if pending < need {
			return errNoQuorum
		}
	}
	return errNoQuorum
}

func (c *confirmer) askPeer(ctx context.Context, s raft.Server) error {
	client, err := c.peers.client(s)
	if err != nil {
		return err
	}
	resp, err := client.ConfirmTerm(ctx, &rollcallv1.ConfirmTermRequest{Term: c.term})
	switch {
	case err != nil:
		return err
	case resp.Node != string(s.ID), resp.Cluster != "" && resp.Cluster != c.cluster:
		// A voter that has just restarted cannot name its cluster yet, but its log is ours.
		return fmt.Errorf("%s of cluster %q answers in place of %s", resp.Node, resp.Cluster, s.ID)
	case resp.Term > c.term:
		return errLostLeadership
	case resp.Term < c.term:
		// It has not heard of our election yet and could not vote against it either, but says nothing of now.
		return fmt.Errorf("%s is still in term %d", s.ID, resp.Term)
	}
	return nil
}
