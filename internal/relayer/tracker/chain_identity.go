package tracker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// ChainIdentity checks whether the nodes' chain is the recorded one. Every process has one, and sends nothing while Err
// returns an error. On a chain that was reset the same nonces belong to other transactions.
type ChainIdentity struct {
	chain          Chain
	store          *store.Store
	log            *slog.Logger
	state          atomic.Pointer[error]
	logged         atomic.Int64 // when the state was last logged, Unix seconds
	contradictions atomic.Int64 // incremented by Verify
	nodes          atomic.Int64 // asked by the last check

	clients []Excluder

	mu       sync.Mutex
	asked    time.Time        // when nodes were first asked while no chain was recorded; zero: never
	faults   map[string]error // the last fault found with each node
	compared map[string]bool  // nodes that have had the recorded history since this process started
	excluded map[string]bool
}

// Excluder excludes an endpoint from use, or includes it again; [evm.Client] implements it.
type Excluder interface {
	Exclude(endpoint string, e evm.Exclusion)
}

// errNotChecked is the state before the first response of a node.
var errNotChecked = errors.New("no node has confirmed yet that the chain is the one that transactions were sent on")

// NewChainIdentity returns a ChainIdentity; Run runs it. The clients do not use endpoints with another history while a majority
// of the responding nodes has the recorded one.
func NewChainIdentity(c Chain, s *store.Store, log *slog.Logger, clients ...Excluder) *ChainIdentity {
	g := &ChainIdentity{
		chain: c, store: s, log: log, clients: clients, faults: map[string]error{}, compared: map[string]bool{}, excluded: map[string]bool{},
	}
	g.state.Store(&errNotChecked)
	return g
}

// Err returns nil while transactions may be sent, and the reason otherwise. It calls no node.
func (c *ChainIdentity) Err() error { return *c.state.Load() }

// checkPause is the pause between two checks for each node, so that an idle relayer makes few calls.
const checkPause = time.Second

// Run checks the chain at each head, and each second without one, until ctx ends. While the chain is the recorded one, checks
// are checkPause apart for each node; rounds check their own view of it at each head. It returns nil.
func (c *ChainIdentity) Run(ctx context.Context) error {
	var head common.Hash
	patience := slowNodeGrace // wait for a slow node, so that sending starts soon
	for ctx.Err() == nil {
		began := time.Now()
		err := c.check(ctx, patience)
		if patience = 0; errors.Is(c.Err(), errNotChecked) {
			patience = slowNodeGrace
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, errForeign) {
			c.log.Debug("chain could not be recognized", "err", err)
		}
		wait, cancel := context.WithTimeout(ctx, time.Second)
		if h, err := c.chain.Next(wait, head); err == nil {
			head = h.Hash
		}
		cancel()
		if c.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(began.Add(time.Duration(c.nodes.Load()) * checkPause))):
			}
		}
	}
	return nil
}

// errForeign reports a chain with another history.
var errForeign = errors.New("the chain has another history than the one that transactions were sent on")

// slowNodeGrace is how much longer than the first node the others may take where a caller waits for their responses.
const slowNodeGrace = time.Second

// Check queries all nodes now, and returns the reason why no transactions may be sent. If no node responds, the previous
// state is kept. A node that was not waited for keeps its previous fault.
func (c *ChainIdentity) Check(ctx context.Context) error { return c.check(ctx, slowNodeGrace) }

func (c *ChainIdentity) check(ctx context.Context, patience time.Duration) error {
	doubts := c.contradictions.Load()
	known, err := c.remembered(ctx)
	if err != nil {
		return errors.Join(c.Err(), err)
	}
	anchors := c.chain.Anchors(ctx, known.Anchor.Number, patience)
	c.nodes.Store(int64(len(anchors)))
	c.mu.Lock()
	defer c.mu.Unlock()
	matching, behind := map[string]bool{}, map[string]bool{}
	var faults []error
	for _, a := range anchors {
		fault := c.faults[a.Endpoint]
		switch {
		case !a.Block.IsZero() && a.Block.Hash == known.Anchor.Hash: // also if it does not return its genesis block
			fault = nil
			matching[a.Endpoint], c.compared[a.Endpoint] = true, true
		case errors.Is(a.Err, context.Canceled): // not waited for
		case a.Err != nil:
			fault = nil
		case a.Genesis != (common.Hash{}) && a.Genesis != known.Genesis:
			fault = fmt.Errorf("%w: %s has genesis block %s, not %s; if that is meant, `rollcall keys resync --new-chain` "+
				"drops what was pending", errForeign, a.Endpoint, a.Genesis, known.Genesis)
		case a.Block.IsZero():
			fault = nil
			behind[a.Endpoint] = true
		default:
			fault = reorganized(a.Endpoint, a.Block, known)
		}
		if c.faults[a.Endpoint] = fault; fault != nil {
			faults = append(faults, fault)
		}
	}
	quorum := len(matching) > len(faults) // of the nodes that could be compared
	for _, a := range anchors {
		fault := c.faults[a.Endpoint]
		switch {
		case matching[a.Endpoint]:
			c.exclude(a.Endpoint, evm.Exclusion{})
		case !quorum: // no majority is right: nothing is sent, and an excluded endpoint stays excluded
		case fault != nil:
			c.exclude(a.Endpoint, evm.Exclusion{Reason: fault.Error()})
		case behind[a.Endpoint]:
			c.exclude(a.Endpoint, evm.Exclusion{
				Reason: fmt.Sprintf("it has no block %d, by which the chain is recognized: it is syncing, or of another chain", known.Anchor.Number),
			})
		case !c.compared[a.Endpoint] && !c.excluded[a.Endpoint]:
			c.exclude(a.Endpoint, evm.Exclusion{Reason: "its history has not been compared yet", Undecided: true})
		}
	}
	switch {
	case quorum:
		if c.contradictions.Load() == doubts { // these responses may be older than a view that contradicted meanwhile
			c.set(nil)
		}
	case len(faults) > 0 && len(matching) > 0:
		c.set(fmt.Errorf("%d of %d nodes that answer have the recorded history, which is no majority: %w",
			len(matching), len(matching)+len(faults), errors.Join(faults...)))
	case len(faults) > 0:
		c.set(errors.Join(faults...))
	case len(behind) > 0:
		c.set(fmt.Errorf("no node has block %d, which has been seen on this chain: they are syncing, or the chain was reset", known.Anchor.Number))
	}
	return c.Err()
}

// exclude excludes an endpoint from use, or includes it again. An excluded endpoint stays excluded until it has the
// recorded history, also while it does not respond. c.mu is held.
func (c *ChainIdentity) exclude(endpoint string, e evm.Exclusion) {
	out := e != (evm.Exclusion{})
	switch {
	case out && !c.excluded[endpoint] && !e.Undecided:
		c.log.Error("endpoint excluded", "endpoint", endpoint, "reason", e.Reason)
	case !out && c.excluded[endpoint]:
		c.log.Info("endpoint included", "endpoint", endpoint)
	}
	c.excluded[endpoint] = out && !e.Undecided
	for _, client := range c.clients {
		client.Exclude(endpoint, e)
	}
}

// reorganized returns the fault of a node that has another block than the recorded anchor. Its genesis block is the same.
func reorganized(node string, has evm.Header, known store.Chain) error {
	return fmt.Errorf("%w: %s has block %s with number %d, not %s, and no other genesis block: the chain was reorganized deeper than that; "+
		"if the nodes are right, `rollcall keys resync --reorganized` takes back what vanished and has it sent again",
		errForeign, node, has.Hash, known.Anchor.Number, known.Anchor.Hash)
}

// Verify compares a view with the recorded chain. It does not query other nodes unless the view is too short, because one
// of them may hang. If the view has another history, sending stops from here on. Verify fails if the round must not draw
// conclusions from the view.
func (c *ChainIdentity) Verify(ctx context.Context, v View) error {
	known, err := c.store.Chain(ctx)
	if errors.Is(err, store.ErrNoChain) {
		return nil
	}
	if err != nil {
		return err
	}
	number := known.Anchor.Number
	if number > v.Header().Number { // it is syncing, or the chain was reset: the other nodes decide
		if err := c.Check(ctx); err != nil {
			return err
		}
		return fmt.Errorf("the node has no block %d, which has been seen on this chain", number)
	}
	headers, err := v.Headers(ctx, number, number)
	if errors.Is(err, evm.ErrMissing) { // the node keeps no block that old
		return nil
	}
	if err != nil {
		return err
	}
	if headers[0].Hash == known.Anchor.Hash {
		return nil
	}
	c.contradictions.Add(1)
	err = reorganized("the node", headers[0], known)
	c.set(err)
	return err
}

// genesisGrace is how long after its first question a process waits for nodes that do not return their genesis block, before the
// other nodes decide which chain is recorded.
const genesisGrace = 10 * time.Second

// remembered returns the recorded chain. If none is recorded, it records the genesis block of the majority of the nodes.
func (c *ChainIdentity) remembered(ctx context.Context) (store.Chain, error) {
	known, err := c.store.Chain(ctx)
	if err == nil || !errors.Is(err, store.ErrNoChain) {
		return known, err
	}
	c.mu.Lock()
	if c.asked.IsZero() {
		c.asked = time.Now()
	}
	late := time.Since(c.asked) >= genesisGrace
	c.mu.Unlock()
	anchors := c.chain.Anchors(ctx, 0, genesisGrace)
	genesis, err := commonGenesis(anchors, late || slices.ContainsFunc(anchors, func(a evm.Anchor) bool { return errors.Is(a.Err, context.Canceled) }))
	if err != nil {
		if !errors.Is(err, errNotChecked) {
			c.set(err)
		}
		return known, err
	}
	return c.store.InitChain(ctx, genesis)
}

// commonGenesis returns the genesis block of most nodes. Nodes of another chain id, and nodes that have pruned their first block,
// have no vote. A node that gave no answer counts as a vote for another block, unless it is late. A tie is an error, because only
// the operator knows the right chain.
func commonGenesis(anchors []evm.Anchor, late bool) (genesis common.Hash, err error) {
	nodes, voters := map[common.Hash][]string{}, 0
	for _, a := range anchors {
		_, wrong := errors.AsType[*evm.WrongChainError](a.Err)
		switch {
		case wrong, a.Err != nil && late, a.Err == nil && a.Genesis == (common.Hash{}):
		case a.Err != nil:
			voters++
		default:
			voters++
			nodes[a.Genesis] = append(nodes[a.Genesis], a.Endpoint)
		}
	}
	var found []string
	for hash, names := range nodes {
		if 2*len(names) > voters {
			return hash, nil
		}
		found = append(found, fmt.Sprintf("%s at %s", hash, strings.Join(names, ", ")))
	}
	if slices.Sort(found); len(found) < 2 {
		return common.Hash{}, errNotChecked
	}
	return common.Hash{}, fmt.Errorf("the nodes disagree about the genesis block, and no majority decides: %s; take those that are of another chain "+
		"out of RELAYER_RPC_URLS", strings.Join(found, "; "))
}

// faultLogged is the interval at which a lasting fault is logged.
const faultLogged = time.Minute

func (c *ChainIdentity) set(now error) {
	before := c.state.Swap(&now)
	switch {
	case now == nil && *before != nil:
		c.log.Info("chain verified, sending enabled")
	case now != nil && (*before == nil || (*before).Error() != now.Error() || time.Since(time.Unix(c.logged.Load(), 0)) >= faultLogged):
		c.logged.Store(time.Now().Unix())
		c.log.Error("sending stopped", "err", now)
	}
}

// StartOver replaces the known chain by the nodes' current one; see [store.Store.ResetChain]. Only an operator calls it.
func StartOver(ctx context.Context, c *evm.Client, s *store.Store, known store.Chain) (dropped int, err error) {
	view, err := c.Latest(ctx)
	if err != nil {
		return 0, err
	}
	var genesis common.Hash
	for _, a := range c.Anchors(ctx, 0, 0) {
		if a.Err == nil && a.Genesis != (common.Hash{}) {
			genesis = a.Genesis
		}
	}
	if genesis == (common.Hash{}) {
		return 0, errNotChecked
	}
	addresses, err := s.Addresses(ctx)
	if err != nil {
		return 0, err
	}
	counts, err := view.PendingNonces(ctx, addresses)
	if err != nil {
		return 0, err
	}
	nonces := map[common.Address]uint64{}
	for i, a := range addresses {
		nonces[a] = counts[i]
	}
	return s.ResetChain(ctx, known, genesis, store.Block{Hash: genesis}, nonces)
}
