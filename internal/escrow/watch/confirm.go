package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

const logsMethod = "eth_getLogs"

// errUnconfirmed means that the logs of a range are not known: endpoints disagree, or too few answer, and nothing proves them.
var errUnconfirmed = errors.New("the logs are not confirmed")

// confirmer reads lists of logs that are confirmed.
type confirmer struct {
	*lists
	// alone reports that a single endpoint is configured, so that no other one can confirm its lists.
	alone   bool
	metrics *metrics
	log     *slog.Logger

	current *blockLists // of the last call of readBlock
}

// candidate is an endpoint's list of a range.
type candidate struct {
	endpoint string
	logs     []evm.Log
}

// read returns the confirmed logs of a range of final blocks, in the order of the chain. If a single endpoint proves them, another one has the
// last block, because the endpoint may be on a branch of its own, without any events. It also has the blocks with logs, with the same
// transactions. It returns an error that matches errUnconfirmed if the endpoints that answer do not settle the logs, or a *tooManyError.
func (c *confirmer) read(ctx context.Context, from, to uint64) ([]evm.Log, error) {
	answers, logs, err := c.agree(func(endpoint string) ([]evm.Log, error) { return c.lists.read(ctx, endpoint, from, to) },
		func(answers []candidate) ([]evm.Log, error) { return c.settle(ctx, answers) })
	if tooMany, ok := errors.AsType[*tooManyError](err); ok {
		return nil, tooMany
	}
	if err != nil && len(answers) == 1 {
		var single error
		logs, single = c.prove(ctx, answers[0], from, to)
		if err = errors.Join(err, single); single == nil {
			err = nil
		}
	}
	if err != nil {
		c.metrics.unconfirmed.Inc()
		return nil, fmt.Errorf("blocks %d to %d: %w: %w", from, to, errUnconfirmed, err)
	}
	return logs, nil
}

// share returns nil if an endpoint other than one has a block, and, if it has logs of ours, the same transactions.
func (c *confirmer) share(ctx context.Context, endpoint string, h evm.Header, logs bool) error {
	var errs []error
	for _, name := range c.client.Endpoints("eth_getBlockByNumber") {
		if name == endpoint {
			continue
		}
		other, err := c.client.HeaderAt(ctx, name, h.Number)
		c.turn()
		switch {
		case err != nil:
		case other.Hash != h.Hash:
			err = fmt.Errorf("endpoint %s has %s", name, other.Hash)
		case logs && other.Transactions() != h.Transactions():
			err = fmt.Errorf("endpoint %s has other transactions", name)
		default:
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("only endpoint %s has block %d %s: %w", endpoint, h.Number, h.Hash, reasons(errs))
}

// agree asks endpoints for a list until two have given the same. Where they differ, it calls settle, or else asks one more. It returns
// all answers.
func (c *confirmer) agree(list func(endpoint string) ([]evm.Log, error), settle func([]candidate) ([]evm.Log, error)) (answers []candidate, logs []evm.Log, err error) {
	var errs []error
	for names := c.client.Endpoints(logsMethod); len(names) > 0; {
		n := min(max(1, 2-len(answers)), len(names))
		got, err := c.ask(names[:n], list)
		names, errs = names[n:], append(errs, err)
		answers = append(answers, got...)
		if len(answers) < 2 {
			continue
		}
		last := answers[len(answers)-1]
		if i := slices.IndexFunc(answers, func(a candidate) bool { return same(a.logs, last.logs) }); i < len(answers)-1 {
			c.distrustOthers(answers, last.logs)
			return answers, withTimesOf(last.logs, answers[i].logs), nil
		}
		if logs, err = settle(answers); err == nil {
			c.distrustOthers(answers, logs)
			return answers, logs, nil
		}
		errs = append(errs, err)
	}
	return answers, nil, reasons(errs)
}

// reasons joins the errors of endpoints. Without any, no endpoint was asked.
func reasons(errs []error) error { return cmp.Or(errors.Join(errs...), evm.ErrNoEndpoint) }

// ask reads the lists of endpoints concurrently. It returns those that answered, in the order of the names, and the errors of the others.
func (c *confirmer) ask(names []string, list func(endpoint string) ([]evm.Log, error)) (answers []candidate, err error) {
	logs, errs := make([][]evm.Log, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { logs[i], errs[i] = list(name) })
	}
	wg.Wait()
	for i, name := range names {
		if errs[i] == nil {
			answers = append(answers, candidate{name, logs[i]})
		}
	}
	return answers, errors.Join(errs...)
}

// settle returns the logs of a range for which endpoints have given different lists: the receipts of the blocks in which they differ prove
// them.
func (c *confirmer) settle(ctx context.Context, answers []candidate) ([]evm.Log, error) {
	logs, other := answers[0].logs, answers[1].logs
	numbers := map[uint64]bool{}
	for _, a := range answers[1:] {
		for _, n := range differing(logs, a.logs) {
			numbers[n] = true
		}
	}
	for n := range numbers {
		c.metrics.disagreements.Inc()
		proven, err := c.proven(ctx, func(endpoint string) (evm.Header, error) { return c.client.HeaderAt(ctx, endpoint, n) }, nil)
		c.turn()
		if err != nil {
			return nil, err
		}
		logs, other = replaced(logs, n, proven), replaced(other, n, proven)
	}
	return c.ours(withTimesOf(logs, other)), nil
}

// proven returns the logs of a block that its receipts prove at an endpoint. Two endpoints must have the block, with the same transactions,
// whose hashes no receipt contains; or one if no other is configured, whose only answer then counts where nothing proves it. The error matches
// errLate if too few have the block, or one does not have its receipts.
func (c *confirmer) proven(ctx context.Context, header func(endpoint string) (evm.Header, error), answers []candidate) ([]evm.Log, error) {
	type block struct{ hash, txs common.Hash }
	need, have := 2, 0
	late := false
	if c.alone {
		need = 1
	}
	seen := map[block]int{}
	logs := map[block][]evm.Log{}
	var errs []error
	for _, name := range c.client.Endpoints("eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts") {
		h, err := header(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		have++
		at := block{h.Hash, h.Transactions()}
		seen[at]++
		if _, ok := logs[at]; !ok {
			b, err := c.client.BlockLogs(ctx, name, h.Hash, c.topics)
			switch {
			case err != nil:
				late = late || errors.Is(err, evm.ErrMissing) || errors.Is(err, evm.ErrStale)
				errs = append(errs, err)
			case b.Proof == evm.Proven:
				logs[block{h.Hash, b.Header.Transactions()}] = b.Logs
			case len(answers) == 1 && c.unproven(b, answers[0].logs):
				logs[at] = answers[0].logs
			default:
				errs = append(errs, fmt.Errorf("block %s at %s: its logs are %s", h.Hash, name, b.Proof))
			}
		}
		if proven, ok := logs[at]; ok && seen[at] >= need {
			return proven, nil
		}
	}
	if have < need || late {
		errs = append(errs, errLate)
	} else {
		errs = append(errs, fmt.Errorf("of %d endpoints with the block, too few have the one that an endpoint proves", have))
	}
	return nil, errors.Join(errs...)
}

// prove returns the logs of a range that only one endpoint has answered. Each of its blocks is proven: by the bloom of its header, or by
// its receipts. The blocks must follow each other: receipts prove only what a block has. If no other endpoint is configured, and nothing is
// proven, the endpoint's list counts.
func (c *confirmer) prove(ctx context.Context, a candidate, from, to uint64) (all []evm.Log, err error) {
	var last evm.Header
	headers := map[uint64]evm.Header{} // of the blocks with logs
	for n := from; n <= to; n++ {
		h, err := c.client.HeaderAt(ctx, a.endpoint, n)
		if err != nil {
			return nil, err
		}
		if !h.Excludes(c.topics...) || laterBlooms(c.client.ChainID()) {
			b, err := c.client.BlockLogs(ctx, a.endpoint, h.Hash, c.topics)
			if err != nil {
				return nil, err
			}
			switch given := ofBlock(a.logs, n); {
			case b.Proof == evm.Proven:
				all = append(all, b.Logs...)
			case c.unproven(b, given):
				all = append(all, given...)
			default:
				return nil, fmt.Errorf("block %d at %s: its logs are %s, and no other endpoint answers", n, a.endpoint, b.Proof)
			}
			h = b.Header // whose number and parent are proven, too
			headers[n] = h
		}
		if h.Number != n || n > from && h.Parent != last.Hash {
			return nil, fmt.Errorf("blocks %d and %d at %s are of different branches", n-1, n, a.endpoint)
		}
		last = h
		c.turn()
	}
	if all = c.ours(all); !same(all, a.logs) {
		c.distrustOthers([]candidate{a}, all)
	}
	if c.alone {
		return all, nil
	}
	for logs := all; len(logs) > 0; {
		of := ofBlock(logs, logs[0].BlockNumber)
		logs = logs[len(of):]
		if err := c.share(ctx, a.endpoint, headers[of[0].BlockNumber], true); err != nil {
			return nil, err
		}
	}
	return all, c.share(ctx, a.endpoint, last, false)
}

// unproven reports whether the list of a block counts although nothing proves it: no other endpoint is configured, and the block's receipts
// have the same logs, or prove nothing. On some chains the root leaves out some receipts, which looks like false ones.
func (c *confirmer) unproven(b evm.BlockLogs, given []evm.Log) bool {
	if !c.alone || b.Proof == evm.Disproven && !same(c.ours(b.Logs), given) {
		return false
	}
	c.metrics.unproven.Inc()
	return true
}

// distrustOthers records the endpoints whose lists were false.
func (c *confirmer) distrustOthers(answers []candidate, logs []evm.Log) {
	for _, a := range answers {
		if same(a.logs, logs) {
			continue
		}
		err := c.client.Distrust(a.endpoint, logsMethod, fmt.Errorf("its list of %d logs is false: there are %d", len(a.logs), len(logs)))
		c.metrics.falseLists.WithLabelValues(a.endpoint).Inc()
		c.log.Warn("endpoint gave a false list of logs", "endpoint", a.endpoint, "logs", len(a.logs), "want", len(logs), "err", err)
	}
}
