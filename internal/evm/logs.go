package evm

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

const logsMethod = "eth_getLogs"

// Log is a log of a contract, as a node reports it.
type Log struct {
	Contract    common.Address
	Topics      []common.Hash // at most four
	Data        []byte
	BlockNumber uint64
	BlockHash   common.Hash
	TxHash      common.Hash
	TxIndex     uint64
	// Index is the node's. It may exceed 32 bits and repeat within a block: the order of logs is that of the answer.
	Index uint64
	// BlockTime is the time of the block in seconds since 1970; 0 if the node does not report it.
	BlockTime uint64
}

// LogQuery selects the logs of one block or of a range of blocks.
type LogQuery struct {
	Block     common.Hash      // the block; zero: From and To decide
	From, To  uint64           // the first and the last block
	Contracts []common.Address // of one of these; empty: of any contract
	Topics    []common.Hash    // with one of these as the first topic; at least one
}

func (q LogQuery) String() string {
	if q.Block != (common.Hash{}) {
		return "block " + q.Block.String()
	}
	return fmt.Sprintf("blocks %d to %d", q.From, q.To)
}

// blocks returns how many blocks the query reads.
func (q LogQuery) blocks() uint64 {
	if q.Block != (common.Hash{}) {
		return 1
	}
	return q.To - q.From + 1
}

func (q LogQuery) filter() map[string]any {
	f := map[string]any{"topics": [][]common.Hash{q.Topics}}
	if q.Block != (common.Hash{}) {
		f["blockHash"] = q.Block
	} else {
		f["fromBlock"], f["toBlock"] = hexutil.Uint64(q.From), hexutil.Uint64(q.To)
	}
	if len(q.Contracts) > 0 {
		f["address"] = q.Contracts
	}
	return f
}

// Logs returns the logs of a query at one endpoint, named as View.Endpoint and Status do, in the order of its answer. It asks no
// other endpoint: the caller compares them, because nodes return lists that lack logs, or are empty, without an error.
//
// The list fits the query. An answer that no healthy node gives, such as a removed or a repeated log, is an error that counts
// against the endpoint for eth_getLogs. ErrMissing means that the endpoint does not know the block, or not all of the range. A
// *LogsLimitError means that a smaller query may be answered. A *RateLimitError without a request is returned until the endpoint's
// limit ends.
func (c *Client) Logs(ctx context.Context, endpoint string, q LogQuery) ([]Log, error) {
	if len(q.Topics) == 0 || q.Block == (common.Hash{}) && q.From > q.To {
		return nil, fmt.Errorf("read the logs of %s: the query has no topic or an empty range", q)
	}
	ep, err := c.named(endpoint)
	if err != nil {
		return nil, err
	}
	logs, err := ep.logs(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read the logs of %s: %w", q, err)
	}
	return logs, nil
}

func (ep *endpoint) logs(ctx context.Context, q LogQuery) (logs []Log, err error) {
	if limit := ep.rateLimit(logsMethod); limit != nil {
		return nil, limit
	}
	answers, err := ep.askPatiently(ctx, []call{{
		method: logsMethod, params: []any{q.filter()}, mayExceed: true,
		answers: func(e *RPCError) bool { return logsUnknown(e) || logsLimitOf(e) != 0 },
		decode:  func(result []byte) (err error) { logs, err = parseLogs(result, q); return err },
	}})
	if err != nil {
		return nil, err
	}
	err = answers[0].err
	if limit, ok := errors.AsType[*LogsLimitError](err); ok && len(q.Contracts) > 1 && errors.Is(err, statusError(http.StatusRequestEntityTooLarge)) {
		limit.Limit = LimitAddresses
	}
	e, ok := errors.AsType[*RPCError](err)
	if !ok || e.Fault {
		return logs, err
	}
	if limit := logsLimitOf(e); limit != 0 {
		refused := &LogsLimitError{Endpoint: ep.name, Limit: limit, Blocks: suggestedBlocks(e, limit), Err: e}
		if refused.Blocks >= q.blocks() {
			refused.Blocks = 0
		}
		return nil, refused
	}
	return nil, fmt.Errorf("%w: %w", ErrMissing, e)
}

// answerLimit returns a *LogsLimitError if a request failed because its answer, or the request itself, is too large, and that is an
// answer.
func (ep *endpoint) answerLimit(calls []call, err error) *LogsLimitError {
	e, ok := errors.AsType[*TransportError](err)
	if !ok || len(calls) != 1 || !calls[0].mayExceed {
		return nil
	}
	if !errors.Is(err, ErrTooLarge) && !errors.Is(err, statusError(http.StatusRequestEntityTooLarge)) {
		return nil
	}
	return &LogsLimitError{Endpoint: ep.name, Limit: LimitSize, Err: e.Err}
}

// parseLogs parses the answer to a query.
func parseLogs(result []byte, q LogQuery) ([]Log, error) {
	logs := make([]Log, 0, bytes.Count(result, []byte(`"logIndex"`)))
	check := newLogCheck(q)
	err := elements(result, func(b []byte) error {
		logs = append(logs, Log{})
		err := parseLog(b, &logs[len(logs)-1])
		if err == nil {
			err = check.last(logs)
		}
		if err != nil {
			return fmt.Errorf("log %d: %w", len(logs)-1, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return logs, nil
}

var errRemoved = errors.New("it is marked as removed")

func parseLog(b []byte, l *Log) error {
	var got int
	err := fields(b, func(key string, value []byte) (err error) {
		if isNull(value) {
			return nil // of a pending log
		}
		got++
		switch key {
		case "address":
			err = parseFixed(l.Contract[:], value)
		case "topics":
			l.Topics, err = parseTopics(value)
		case "data":
			l.Data, err = parseData(value)
		case "blockNumber":
			l.BlockNumber, err = parseUint(value)
		case "blockHash":
			l.BlockHash, err = parseHash(value)
		case "transactionHash":
			l.TxHash, err = parseHash(value)
		case "transactionIndex":
			l.TxIndex, err = parseUint(value)
		case "logIndex":
			l.Index, err = parseUint(value)
		default:
			got--
			switch {
			case key == "removed" && string(value) != "false":
				err = errRemoved
			case key == "blockTimestamp":
				l.BlockTime, _ = parseUint(value) // nodes that write it in another way do not report it
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err == nil && got != 8 {
		err = fmt.Errorf("%w: a log without all of its fields", errMalformed)
	}
	return err
}

func parseTopics(b []byte) ([]common.Hash, error) {
	var topics [4]common.Hash
	n := 0
	err := elements(b, func(b []byte) (err error) {
		if n == len(topics) {
			return fmt.Errorf("%w: more than four topics", errMalformed)
		}
		topics[n], err = parseHash(b)
		n++
		return err
	})
	return slices.Clone(topics[:n]), err
}

// parseData parses bytes of any length.
func parseData(b []byte) ([]byte, error) {
	if string(b) == `"0x"` {
		return nil, nil
	}
	s, err := digits(b)
	if err != nil {
		return nil, err
	}
	data := make([]byte, len(s)/2)
	if _, err := hex.Decode(data, s); err != nil {
		return nil, fmt.Errorf("%w: not hex", errMalformed)
	}
	return data, nil
}

// logCheck checks that a healthy node may return the logs of an answer, one after another. It leaves open what chains do
// differently: how logs and transactions of a block are numbered, and in which order its transactions are.
type logCheck struct {
	q         LogQuery
	contracts map[common.Address]bool
	txs       map[common.Hash]bool // of the last log's block, all of them
	began     int                  // position of the first log of the last log's transaction
	highest   uint64               // index of a log of that transaction
	seen      map[logKey]int       // position of each log of that transaction; nil while its indexes rise
	seed      maphash.Seed
}

// logKey is equal for equal logs of a transaction, and hardly ever for others.
type logKey struct{ index, sum uint64 }

func newLogCheck(q LogQuery) *logCheck {
	c := &logCheck{q: q, contracts: make(map[common.Address]bool, len(q.Contracts)), txs: map[common.Hash]bool{}, seed: maphash.MakeSeed()}
	for _, a := range q.Contracts {
		c.contracts[a] = true
	}
	return c
}

// last checks the last log. All before it are checked.
func (c *logCheck) last(logs []Log) error {
	at := len(logs) - 1
	l := &logs[at]
	switch {
	case len(l.Topics) == 0 || !slices.Contains(c.q.Topics, l.Topics[0]):
		return errors.New("its first topic was not asked for")
	case len(c.contracts) > 0 && !c.contracts[l.Contract]:
		return fmt.Errorf("its contract %s was not asked for", l.Contract)
	case c.q.Block != (common.Hash{}) && l.BlockHash != c.q.Block:
		return fmt.Errorf("it is of block %s", l.BlockHash)
	case c.q.Block == (common.Hash{}) && (l.BlockNumber < c.q.From || l.BlockNumber > c.q.To):
		return fmt.Errorf("it is of block %d", l.BlockNumber)
	}
	if at == 0 {
		c.begin(at, l)
		return nil
	}
	switch before := &logs[at-1]; {
	case l.BlockNumber < before.BlockNumber:
		return fmt.Errorf("it is of block %d and follows one of block %d", l.BlockNumber, before.BlockNumber)
	case (l.BlockNumber == before.BlockNumber) != (l.BlockHash == before.BlockHash):
		return fmt.Errorf("it is of block %d %s and follows one of block %d %s", l.BlockNumber, l.BlockHash, before.BlockNumber, before.BlockHash)
	case l.BlockNumber != before.BlockNumber:
		clear(c.txs)
	case l.TxHash != before.TxHash && c.txs[l.TxHash]:
		return fmt.Errorf("logs of another transaction are among those of %s", l.TxHash)
	case l.TxHash == before.TxHash && l.TxIndex != before.TxIndex:
		return fmt.Errorf("transaction %s has index %d and index %d", l.TxHash, before.TxIndex, l.TxIndex)
	case l.TxHash == before.TxHash:
		return c.repeats(logs)
	}
	c.begin(at, l)
	return nil
}

// begin records the first log of a transaction.
func (c *logCheck) begin(at int, l *Log) {
	c.txs[l.TxHash] = true
	c.began, c.highest, c.seen = at, l.Index, nil
}

// repeats returns an error if the last log equals one of the same transaction.
func (c *logCheck) repeats(logs []Log) error {
	at := len(logs) - 1
	if c.seen == nil {
		if logs[at].Index > c.highest {
			c.highest = logs[at].Index
			return nil
		}
		c.seen = map[logKey]int{}
		for i := c.began; i < at; i++ {
			c.seen[c.key(&logs[i])] = i
		}
	}
	k := c.key(&logs[at])
	if i, ok := c.seen[k]; ok && logs[i].Contract == logs[at].Contract && slices.Equal(logs[i].Topics, logs[at].Topics) &&
		bytes.Equal(logs[i].Data, logs[at].Data) {
		return fmt.Errorf("it repeats log %d", i)
	}
	c.seen[k] = at
	return nil
}

func (c *logCheck) key(l *Log) logKey {
	var h maphash.Hash
	h.SetSeed(c.seed)
	_, _ = h.Write(l.Contract[:])
	for i := range l.Topics {
		_, _ = h.Write(l.Topics[i][:])
	}
	_, _ = h.Write(l.Data)
	return logKey{l.Index, h.Sum64()}
}
