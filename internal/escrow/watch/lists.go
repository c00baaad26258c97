package watch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

const (
	// firstSpan is how many blocks the first query of an endpoint asks for, and maxSpan how many any query does.
	firstSpan, maxSpan = 1_000, 10_000
	// maxAddresses is how many contracts a query names at most: geth's own limit.
	maxAddresses = 1_000
	// maxListBytes is how large a list may be, in memory. At most four lists are read at a time: two ranges, each at two endpoints.
	maxListBytes = 16 << 20
	// After strangersFrom logs of a range, the rest of it is asked for by contract if fewer than one in strangersShare was ours.
	strangersFrom, strangersShare = 10_000, 100
)

// tooManyError means that a range has more logs of ours than a list may hold.
type tooManyError struct {
	from, to uint64 // the part of the range that exceeds it
}

func (e *tooManyError) Error() string {
	return fmt.Sprintf("blocks %d to %d have more events than are read at a time", e.from, e.to)
}

// fewer returns how many blocks to read instead.
func (e *tooManyError) fewer() uint64 { return max(1, (e.to-e.from+1)/2) }

// lists reads lists of logs from single endpoints, within the limits of each. It is safe for concurrent use.
type lists struct {
	client *evm.Client
	topics []common.Hash
	// contracts returns the factories and escrows, for endpoints that need them in a query.
	contracts func() []common.Address
	// factory reports whether a contract is a factory, and known whether it is one or an escrow.
	factory, known func(common.Address) bool
	set            *events.Set
	// turned is called after each query, and after each block that is proven; nil for nothing.
	turned func()
	// maxBytes is how large the list of several blocks may be, in memory; 0 for any size.
	maxBytes int

	mu     sync.Mutex
	limits map[string]*limits // by endpoint
}

// limits are those of an endpoint, as far as its answers show.
type limits struct {
	span       uint64    // blocks of the next query
	most       uint64    // blocks of any query; it has refused more
	byContract bool      // it refuses queries by topics alone
	contracts  int       // of a query, at most
	until      time.Time // when all of this is forgotten
}

// limitsAge is for how long an endpoint's limits are believed: a refusal may have been a fault, and plans change.
const limitsAge = 10 * time.Minute

// of returns a copy of an endpoint's limits.
func (l *lists) of(endpoint string) limits {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.entry(endpoint)
}

// entry returns an endpoint's limits. l.mu is held.
func (l *lists) entry(endpoint string) *limits {
	if l.limits == nil {
		l.limits = map[string]*limits{}
	}
	at := l.limits[endpoint]
	if at == nil || time.Now().After(at.until) {
		at = &limits{span: firstSpan, most: maxSpan, contracts: maxAddresses, until: time.Now().Add(limitsAge)}
		l.limits[endpoint] = at
	}
	return at
}

// answered records that an endpoint has answered a query of n blocks.
func (l *lists) answered(endpoint string, n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.entry(endpoint); n >= at.span {
		at.span = min(2*n, at.most)
	}
}

// refused records that a query of n blocks was too large, and reports whether a smaller one may be answered.
func (l *lists) refused(n uint64, e *evm.LogsLimitError) (smaller bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.entry(e.Endpoint)
	switch e.Limit {
	case evm.LimitNoAddress:
		smaller = !at.byContract
		at.byContract = true
		return smaller
	case evm.LimitAddresses:
		smaller = at.contracts > 1
		at.contracts = max(1, at.contracts/2)
		return smaller
	}
	if n <= 1 {
		return false
	}
	at.span = max(1, n/2)
	if e.Blocks > 0 && e.Blocks < n {
		at.span = e.Blocks
	}
	if e.Limit == evm.LimitRange {
		at.most = max(at.span, e.Blocks)
	}
	return true
}

// read returns our logs of a range of blocks at one endpoint, in the order of the chain. It fails with a *tooManyError if those of
// several blocks exceed maxBytes.
func (l *lists) read(ctx context.Context, endpoint string, from, to uint64) ([]evm.Log, error) {
	var all []evm.Log
	created := map[common.Address]uint64{} // by logs of the range
	strangers, size := 0, 0
	for at := from; at <= to; {
		n := min(l.of(endpoint).span, to-at+1)
		byContract := strangers >= strangersFrom && len(all) < strangers/strangersShare
		logs, err := l.query(ctx, endpoint, evm.LogQuery{From: at, To: at + n - 1, Topics: l.topics}, created, byContract)
		limit, tooLarge := errors.AsType[*evm.LogsLimitError](err)
		switch {
		case tooLarge && l.refused(n, limit):
			continue
		case tooLarge && n == 1:
			if logs, err = l.block(ctx, endpoint, at); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		default:
			l.answered(endpoint, n)
		}
		ours := l.oursAfter(logs, created)
		strangers += len(logs) - len(ours)
		all = append(all, ours...)
		for i := range ours {
			size += sizeOf(&ours[i])
		}
		if l.maxBytes > 0 && size > l.maxBytes && to > from {
			return nil, &tooManyError{from, at + n - 1}
		}
		at += n
	}
	return all, nil
}

// sizeOf returns about how much memory a log takes.
func sizeOf(log *evm.Log) int {
	return int(unsafe.Sizeof(*log)) + len(log.Topics)*common.HashLength + len(log.Data)
}

// readBlock returns our logs of the block of a hash at one endpoint.
func (l *lists) readBlock(ctx context.Context, endpoint string, hash common.Hash) ([]evm.Log, error) {
	for {
		logs, err := l.query(ctx, endpoint, evm.LogQuery{Block: hash, Topics: l.topics}, nil, false)
		limit, tooLarge := errors.AsType[*evm.LogsLimitError](err)
		if tooLarge && l.refused(1, limit) {
			continue
		}
		if tooLarge {
			var b evm.BlockLogs
			b, err = l.client.BlockLogs(ctx, endpoint, hash, l.topics)
			logs = b.Logs
		}
		return l.ours(logs), err
	}
}

// query sends one query by topics, or, if byContract is set or the endpoint refuses that, one for each chunk of contracts: those that are
// registered, those that earlier logs of the range create, and those that its own logs create. The logs are in the order of the chain.
func (l *lists) query(ctx context.Context, endpoint string, q evm.LogQuery, created map[common.Address]uint64, byContract bool) ([]evm.Log, error) {
	at := l.of(endpoint)
	if !byContract && !at.byContract {
		return l.ask(ctx, endpoint, q)
	}
	var answers [][]evm.Log
	own := map[common.Address]uint64{} // created by the query's own logs
	asked := map[common.Address]bool{}
	for contracts := slices.AppendSeq(l.contracts(), maps.Keys(created)); len(contracts) > 0; {
		for some := range slices.Chunk(contracts, at.contracts) {
			q.Contracts = some
			logs, err := l.ask(ctx, endpoint, q)
			if err != nil {
				return nil, err
			}
			answers = append(answers, logs)
			l.create(own, logs)
		}
		for _, a := range contracts {
			asked[a] = true
		}
		contracts = slices.DeleteFunc(slices.Collect(maps.Keys(own)), func(a common.Address) bool { return asked[a] })
	}
	return l.merged(ctx, endpoint, answers), nil
}

// merged returns the logs of several answers of an endpoint in the order of the chain. Within an answer their places decide. In a block with
// logs in several answers the node's indexes do, unless they repeat, fall or are so large that they may have begun again from 0: then the
// receipts of the block decide. Without receipts their order stays, and another endpoint has to give the same.
func (l *lists) merged(ctx context.Context, endpoint string, answers [][]evm.Log) []evm.Log {
	all := slices.Concat(answers...)
	slices.SortStableFunc(all, func(a, b evm.Log) int { return cmp.Compare(a.BlockNumber, b.BlockNumber) })
	parts := map[uint64]int{} // how many answers have logs of a block
	regular := map[uint64]bool{}
	for _, logs := range answers {
		for len(logs) > 0 {
			number := logs[0].BlockNumber
			of := ofBlock(logs, number)
			logs = logs[len(of):]
			regular[number] = rising(of) && (parts[number] == 0 || regular[number])
			parts[number]++
		}
	}
	for number, n := range parts {
		if n == 1 {
			continue
		}
		of := ofBlock(all, number)
		last := of[len(of)-1]
		slices.SortStableFunc(of, inBlock)
		if regular[number] && rising(of) {
			continue
		}
		if b, err := l.client.BlockLogs(ctx, endpoint, last.BlockHash, l.topics); err == nil {
			all = replaced(all, number, b.Logs)
		}
		l.turn()
	}
	return all
}

// maxIndex is how large indexes of logs are at most where they decide. No block has so many logs.
const maxIndex = 1 << 31

// inBlock compares the places that two logs of a block have by the node's indexes.
func inBlock(a, b evm.Log) int {
	return cmp.Or(cmp.Compare(a.TxIndex, b.TxIndex), cmp.Compare(a.Index, b.Index))
}

// rising reports whether the logs are of one block, in the order of the node's indexes, and no two are at the same place.
func rising(logs []evm.Log) bool {
	for i := range logs {
		if logs[i].Index >= maxIndex || i > 0 && (inBlock(logs[i-1], logs[i]) >= 0 || logs[i-1].BlockHash != logs[i].BlockHash) {
			return false
		}
	}
	return true
}

func (l *lists) ask(ctx context.Context, endpoint string, q evm.LogQuery) ([]evm.Log, error) {
	logs, err := l.client.Logs(ctx, endpoint, q)
	l.turn()
	return logs, err
}

// turn reports progress.
func (l *lists) turn() {
	if l.turned != nil {
		l.turned()
	}
}

// create adds the escrows that logs create and that are not known yet, with the blocks of their creation.
func (l *lists) create(created map[common.Address]uint64, logs []evm.Log) {
	for i := range logs {
		if !l.factory(logs[i].Contract) {
			continue
		}
		log := converted(&logs[i])
		escrow, ok := l.set.Created(&log)
		if !ok || l.known(escrow) {
			continue
		}
		if at, ok := created[escrow]; !ok || logs[i].BlockNumber < at {
			created[escrow] = logs[i].BlockNumber
		}
	}
}

// ours returns the logs of known contracts, and those of the escrows that the logs create, from the block of the creation on. Only these are
// compared: an endpoint that is asked for contracts gives no others.
func (l *lists) ours(logs []evm.Log) []evm.Log { return l.oursAfter(logs, map[common.Address]uint64{}) }

// oursAfter is ours for logs after others that have created escrows. It adds those that the logs create. An escrow's logs before its creation's
// block never count. Otherwise endpoints with different limits would give different lists: one query may have both blocks, or only the earlier
// one.
func (l *lists) oursAfter(logs []evm.Log, created map[common.Address]uint64) []evm.Log {
	l.create(created, logs)
	var all []evm.Log
	for _, log := range logs {
		if at, ok := created[log.Contract]; ok && at <= log.BlockNumber || l.known(log.Contract) {
			all = append(all, log)
		}
	}
	return all
}

// block returns the logs of a block from its receipts.
func (l *lists) block(ctx context.Context, endpoint string, number uint64) ([]evm.Log, error) {
	h, err := l.client.HeaderAt(ctx, endpoint, number)
	if err != nil {
		return nil, err
	}
	b, err := l.client.BlockLogs(ctx, endpoint, h.Hash, l.topics)
	if err != nil {
		return nil, err
	}
	return b.Logs, nil
}

// withTimesOf returns a list without the times that an equal list does not have.
func withTimesOf(logs, other []evm.Log) []evm.Log {
	logs = slices.Clone(logs)
	for i := range logs {
		if logs[i].BlockTime != other[i].BlockTime {
			logs[i].BlockTime = 0
		}
	}
	return logs
}

// same reports whether two lists are equal. The indexes of logs do not count, because nodes number them in different ways, and neither do
// the times, which few nodes report.
func same(a, b []evm.Log) bool { return slices.EqualFunc(a, b, sameLog) }

func sameLog(a, b evm.Log) bool {
	return a.Contract == b.Contract && a.BlockNumber == b.BlockNumber && a.BlockHash == b.BlockHash && a.TxHash == b.TxHash && a.TxIndex == b.TxIndex &&
		slices.Equal(a.Topics, b.Topics) && bytes.Equal(a.Data, b.Data)
}

// differing returns the numbers of the blocks in which two lists differ, in order.
func differing(a, b []evm.Log) (numbers []uint64) {
	blocks := map[uint64]bool{}
	for _, l := range slices.Concat(a, b) {
		blocks[l.BlockNumber] = true
	}
	for n := range blocks {
		if !same(ofBlock(a, n), ofBlock(b, n)) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// ofBlock returns the part of a list, which is in the order of the chain, with the logs of a block.
func ofBlock(logs []evm.Log, number uint64) []evm.Log {
	from, _ := slices.BinarySearchFunc(logs, number, func(l evm.Log, n uint64) int { return cmp.Compare(l.BlockNumber, n) })
	to, _ := slices.BinarySearchFunc(logs, number+1, func(l evm.Log, n uint64) int { return cmp.Compare(l.BlockNumber, n) })
	return logs[from:to]
}

// replaced returns a list with the logs of a block replaced.
func replaced(logs []evm.Log, number uint64, by []evm.Log) []evm.Log {
	from, _ := slices.BinarySearchFunc(logs, number, func(l evm.Log, n uint64) int { return cmp.Compare(l.BlockNumber, n) })
	return slices.Replace(slices.Clone(logs), from, from+len(ofBlock(logs, number)), by...)
}
