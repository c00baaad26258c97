package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// follow finds a leader and monitors it until it is doubtful, from the first use of the Client to Close.
func (c *Client) follow() {
	for {
		l := c.discover(c.life)
		if l == nil {
			return
		}
		c.monitor(c.life, l)
	}
}

// answer is a coordinator's response to a ping, or the ping's error.
type answer struct {
	address string
	ping    *rollcallv1.PingResponse
	err     error
	cause   string // of err, in plain words
}

// ask pings the coordinator at address.
func (c *Client) ask(ctx context.Context, address string) answer {
	a := answer{address: address}
	if a.ping, a.err = c.Ping(ctx, address); a.err != nil {
		a.cause = causeOf(a.err, c.cfg.TLS != nil, c.cfg.PingTimeout)
	}
	return a
}

// claims reports whether the node claims to lead.
func (a answer) claims() bool {
	return a.err == nil && a.ping.GetLeader() != nil && a.ping.GetLeader().GetNode() == a.ping.GetNode() &&
		a.ping.GetCluster() != ""
}

func (a answer) String() string {
	switch {
	case a.err != nil:
		return a.cause
	case a.claims():
		return fmt.Sprintf("%s leads epoch %d", a.ping.GetNode(), a.ping.GetEpoch())
	case a.ping.GetLeader() != nil:
		return fmt.Sprintf("%s reports %s as the leader", a.ping.GetNode(), a.ping.GetLeader().GetNode())
	}
	return fmt.Sprintf("%s has no leader", a.ping.GetNode())
}

// discover pings all coordinators, in rounds, until one is confirmed as the leader. It returns nil when ctx ends.
func (c *Client) discover(ctx context.Context) *leadership {
	ctx, cancel := context.WithCancel(ctx)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()

	targets := slices.Clone(c.cfg.Coordinators)
	c.mu.Lock()
	if l := c.leader; l != nil && !slices.Contains(targets, l.Address) {
		targets = append(targets, l.Address)
	}
	c.mu.Unlock()

	answers := make(chan answer)
	waiting := map[string]bool{}
	ask := func(address string) {
		if waiting[address] {
			return // a hanging node is pinged again after its ping has timed out
		}
		waiting[address] = true
		asked.Go(func() {
			a := c.ask(ctx, address)
			select {
			case answers <- a:
			case <-ctx.Done():
			}
		})
	}
	for {
		for _, address := range targets {
			ask(address)
		}
		var round []answer
		end := time.NewTimer(jitter(c.cfg.DiscoveryInterval))
		for over := false; !over && len(waiting) > 0; {
			select {
			case a := <-answers:
				delete(waiting, a.address)
				round = append(round, a)
				for _, address := range addressesOf(a.ping.GetLeader()) {
					if !slices.Contains(targets, address) {
						targets = append(targets, address)
						ask(address)
					}
				}
			case <-end.C:
				over = true
				end.Reset(0)
			case <-ctx.Done():
				end.Stop()
				return nil
			}
		}
		if l := c.evaluateRound(round); l != nil {
			end.Stop()
			return l
		}
		select {
		case <-end.C:
		case <-ctx.Done():
			end.Stop()
			return nil
		}
	}
}

// addressesOf lists a leader's advertised addresses. The client address comes first, because the other one may resolve
// only in the cluster's own network.
func addressesOf(l *rollcallv1.Leader) []string {
	var addresses []string
	for _, a := range []string{l.GetClientAddress(), l.GetAddress()} {
		if a != "" && !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// evaluateRound records a round of answers and adopts the leader among them, if there is one.
func (c *Client) evaluateRound(round []answer) *leadership {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.broadcastLocked()

	round = c.rejectForeignLocked(round)
	for _, a := range round {
		c.answers[a.address] = a.String()
		c.epoch = max(c.epoch, a.ping.GetEpoch())
	}
	var claims []answer
	for _, a := range round {
		// Followers report the epoch too. A claim below the highest epoch is from a former leader, or was overtaken
		// within this round.
		if a.claims() && a.ping.GetEpoch() == c.epoch {
			claims = append(claims, a)
		}
	}
	if len(claims) == 0 {
		return nil
	}
	// An epoch has one leader, so these are its answers at several addresses. Its advertised addresses come first. If
	// they are unreachable, for example from outside a container network, the address at which it responded is used.
	advertised := addressesOf(claims[0].ping.GetLeader())
	rank := func(a answer) int {
		if i := slices.Index(advertised, a.address); i >= 0 {
			return i
		}
		return len(advertised)
	}
	best := slices.MinFunc(claims, func(a, b answer) int { return rank(a) - rank(b) })
	return c.adoptLocked(best.address, best.ping)
}

// rejectForeignLocked returns the answers of this client's cluster, and the failed ones.
func (c *Client) rejectForeignLocked(round []answer) []answer {
	cluster := c.cluster
	for _, a := range round {
		if cluster == "" {
			cluster = a.ping.GetCluster()
		}
	}
	own, native := round[:0:0], false
	var foreign *ForeignClusterError
	for _, a := range round {
		switch id := a.ping.GetCluster(); {
		case a.err == nil && id != "" && id != cluster:
			foreign = &ForeignClusterError{Expected: cluster, Actual: id, Address: a.address}
			words := fmt.Sprintf("belongs to another cluster, %q", id)
			if c.answers[a.address] != words {
				c.log.Error("coordinator belongs to another cluster; it is ignored; if the cluster was founded again on purpose, restart this process",
					"address", a.address, "node", a.ping.GetNode(), "cluster", id, "expected", cluster)
			}
			c.answers[a.address] = words
		default:
			native = native || a.err == nil
			own = append(own, a)
		}
	}
	c.foreignError = nil
	if foreign != nil && (c.cluster == "" || !native) {
		// Either only foreign coordinators respond, or the configured coordinators belong to two clusters and the
		// intended one is unknown.
		c.foreignError = foreign
		return nil
	}
	return own
}

// adoptLocked makes the responding node the leader. It ends calls that still wait for another one.
func (c *Client) adoptLocked(address string, ping *rollcallv1.PingResponse) *leadership {
	conn := c.conns[address]
	if conn == nil {
		return nil // closed in the meantime
	}
	next := Leader{Cluster: ping.GetCluster(), Node: ping.GetNode(), Address: address, Epoch: ping.GetEpoch()}
	c.cluster = next.Cluster
	if last := c.leader; last == nil || last.Leader != next {
		l := &leadership{Leader: next, conn: conn}
		if last != nil && last.Node == next.Node {
			l.done, l.end = last.done, last.end
		} else {
			if last != nil {
				last.end()
			}
			l.done, l.end = context.WithCancel(c.life)
		}
		c.leader = l
		c.log.Info("leader found", "leader", next.Node, "address", next.Address, "epoch", next.Epoch)
	}
	c.confirmed = true
	return c.leader
}

// monitor pings the leader until it is doubtful.
func (c *Client) monitor(ctx context.Context, l *leadership) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	broken := make(chan struct{})
	watching.Go(func() {
		// A process that ends closes its connections, which is detected long before the next ping.
		if l.conn.GetState() != connectivity.Ready || l.conn.WaitForStateChange(ctx, connectivity.Ready) {
			close(broken)
		}
	})
	poll := time.NewTimer(jitter(c.cfg.PingInterval))
	defer poll.Stop()
	for {
		l, changed, _ := c.snapshot()
		if l == nil {
			return // a call has marked it doubtful
		}
		select {
		case <-changed:
			continue
		case <-poll.C:
			if !c.stillLeads(l, c.ask(ctx, l.Address)) {
				c.markDoubtful(l)
				return
			}
			poll.Reset(jitter(c.cfg.PingInterval))
		case <-broken:
			c.markDoubtful(l)
			return
		case <-ctx.Done():
			return
		}
	}
}

// stillLeads reports whether the leader's answer confirms it, possibly in a later epoch.
func (c *Client) stillLeads(l *leadership, a answer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[a.address] = a.String()
	if !a.claims() || a.ping.GetNode() != l.Node || a.ping.GetCluster() != c.cluster || a.ping.GetEpoch() < c.epoch {
		return false
	}
	c.epoch = a.ping.GetEpoch()
	if a.ping.GetEpoch() != l.Epoch {
		c.adoptLocked(l.Address, a.ping)
		c.broadcastLocked()
	}
	return true
}

// markDoubtful marks l as doubtful: new calls wait until a leader is confirmed. Calls in flight to l continue, because
// it may still answer them.
func (c *Client) markDoubtful(l *leadership) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader == l && c.confirmed {
		c.confirmed = false
		c.broadcastLocked()
	}
}

func (c *Client) broadcastLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}
