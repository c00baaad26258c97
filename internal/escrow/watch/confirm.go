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

// single is an endpoint on which the logs of a range rest: no other one has given them.
type single struct {
	endpoint string
	headers  []evm.Header // that another endpoint must have, too
}

// readShared returns the confirmed logs of a range of final blocks, in the order of the chain. If a single endpoint proves them, another one
// has the last block, because the endpoint may be on a branch of its own, without any events. It also has the blocks with logs, with the same
// transactions. It returns an error that matches errUnconfirmed if the endpoints that answer do not settle the logs, or a *tooManyError.
func (c *confirmer) readShared(ctx context.Context, from, to uint64) ([]evm.Log, error) {
	logs, by, err := c.read(ctx, from, to)
	if err == nil && by != nil && !c.alone {
		if err = c.share(ctx, by); err != nil {
			c.metrics.unconfirmed.Inc()
			err = fmt.Errorf("blocks %d to %d: %w: %w", from, to, errUnconfirmed, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return logs, nil
}

// share returns nil if another endpoint has the blocks on which a list rests.
func (c *confirmer) share(ctx context.Context, by *single) error {
	for _, h := range by.headers {
		var errs []error
		if !slices.ContainsFunc(c.client.Endpoints("eth_getBlockByNumber"), func(name string) bool {
			if name == by.endpoint {
				return false
			}
			other, err := c.client.HeaderAt(ctx, name, h.Number)
			c.turn()
			if err == nil && (other.Hash != h.Hash || other.Transactions() != h.Transactions()) {
				err = fmt.Errorf("endpoint %s has %s, or other transactions", name, other.Hash)
			}
			errs = append(errs, err)
			return err == nil
		}) {
			return fmt.Errorf("only endpoint %s has block %d %s: %w", by.endpoint, h.Number, h.Hash, reasons(errs))
		}
	}
	return nil
}

// read returns the logs of a range as readShared does, and the endpoint on which they rest, if it is a single one.
func (c *confirmer) read(ctx context.Context, from, to uint64) (logs []evm.Log, by *single, err error) {
	answers, logs, err := c.agree(func(endpoint string) ([]evm.Log, error) { return c.lists.read(ctx, endpoint, from, to) },
		func(answers []candidate) ([]evm.Log, error) { return c.settle(ctx, answers) })
	if tooMany, ok := errors.AsType[*tooManyError](err); ok {
		return nil, nil, tooMany
	}
	if err != nil && len(answers) == 1 {
		var failed error
		logs, by, failed = c.prove(ctx, answers[0], from, to)
		if err = errors.Join(err, failed); failed == nil {
			err = nil
		}
	}
	if err != nil {
		c.metrics.unconfirmed.Inc()
		return nil, nil, fmt.Errorf("blocks %d to %d: %w: %w", from, to, errUnconfirmed, err)
	}
	return logs, by, nil
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
// errLate if too few have the block.
func (c *confirmer) proven(ctx context.Context, header func(endpoint string) (evm.Header, error), answers []candidate) ([]evm.Log, error) {
	type block struct{ hash, txs common.Hash }
	need, have := 2, 0
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
				errs = append(errs, err)
			case b.Proof == evm.Proven:
				logs[block{h.Hash, b.Header.Transactions()}] = b.Logs
			case b.Proof == evm.NotProvable && c.alone && len(answers) == 1:
				c.metrics.unproven.Inc()
				logs[at] = answers[0].logs
			default:
				errs = append(errs, fmt.Errorf("block %s at %s: its logs are %s", h.Hash, name, b.Proof))
			}
		}
		if proven, ok := logs[at]; ok && seen[at] >= need {
			return proven, nil
		}
	}
	if have < need {
		errs = append(errs, errLate)
	} else {
		errs = append(errs, fmt.Errorf("of %d endpoints with the block, too few have the one that an endpoint proves", have))
	}
	return nil, errors.Join(errs...)
}

// prove returns the logs of a range that only one endpoint has answered. Each of its blocks is proven: by the bloom of its header, or by
// its receipts. The blocks must follow each other: receipts prove only what a block has. If no other endpoint is configured, and the chain's
// headers prove nothing, the endpoint's list counts.
func (c *confirmer) prove(ctx context.Context, a candidate, from, to uint64) (all []evm.Log, by *single, err error) {
	var last evm.Header
	var headers []evm.Header
	for n := from; n <= to; n++ {
		h, err := c.client.HeaderAt(ctx, a.endpoint, n)
		if err != nil {
			return nil, nil, err
		}
		before := len(all)
		if !h.Excludes(c.topics...) || laterBlooms(c.client.ChainID()) {
			b, err := c.client.BlockLogs(ctx, a.endpoint, h.Hash, c.topics)
			if err != nil {
				return nil, nil, err
			}
			switch {
			case b.Proof == evm.Proven:
				all = append(all, b.Logs...)
			case b.Proof == evm.NotProvable && c.alone:
				c.metrics.unproven.Inc()
				all = append(all, ofBlock(a.logs, n)...)
			default:
				return nil, nil, fmt.Errorf("block %d at %s: its logs are %s, and no other endpoint answers", n, a.endpoint, b.Proof)
			}
			h = b.Header // whose number and parent are proven, too
		}
		if h.Number != n || n > from && h.Parent != last.Hash {
			return nil, nil, fmt.Errorf("blocks %d and %d at %s are of different branches", n-1, n, a.endpoint)
		}
		if n == to || len(all) > before {
			headers = append(headers, h)
		}
		last = h
		c.turn()
	}
	if all = c.ours(all); !same(all, a.logs) {
		c.distrustOthers([]candidate{a}, all)
	}
	headers = slices.DeleteFunc(headers, func(h evm.Header) bool { return h.Number < to && len(ofBlock(all, h.Number)) == 0 })
	return all, &single{a.endpoint, headers}, nil
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
