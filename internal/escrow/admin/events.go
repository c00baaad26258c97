package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// Filter selects events or parked logs. A zero field selects all.
type Filter struct {
	Escrow *common.Address
	// From and To are the first and the last block; To 0 is the newest.
	From, To uint64
	// Limit is how many of the newest are returned. Default 100.
	Limit int
}

// where is the condition for a filter's rows.
const where = `chain_id = $1 AND ($2::bytea IS NULL OR escrow = $2) AND block_number >= $3 AND ($4::bigint = 0 OR block_number <= $4)`

func (f Filter) args(a *Admin, others ...any) []any {
	var escrow []byte
	if f.Escrow != nil {
		escrow = f.Escrow[:]
	}
	return append([]any{int64(a.ChainID), escrow, int64(f.From), int64(f.To)}, others...)
}

func (f Filter) limit() int {
	if f.Limit == 0 {
		return 100
	}
	return f.Limit
}

// Events returns the latest message of each matching event, in the order of the chain: of the newest events, if there are more than the
// limit. The messages may not be published yet.
func (a *Admin) Events(ctx context.Context, f Filter) ([]*events.Message, error) {
	rows, err := a.db.Query(ctx, `SELECT message FROM processed_events WHERE `+where+` ORDER BY block_number DESC, place DESC LIMIT $5`, f.args(a, f.limit())...)
	if err != nil {
		return nil, fmt.Errorf("read the events of chain %d: %w", a.ChainID, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*events.Message, error) {
		var text []byte
		m := new(events.Message)
		if err := row.Scan(&text); err != nil {
			return nil, err
		}
		return m, json.Unmarshal(text, m)
	})
	if err != nil {
		return nil, fmt.Errorf("read the events of chain %d: %w", a.ChainID, err)
	}
	slices.Reverse(list)
	return list, nil
}

// Parked is a log that does not decode.
type Parked struct {
	EventID     string            `json:"eventId"`
	BlockNumber uint64            `json:"blockNumber"`
	BlockHash   common.Hash       `json:"blockHash"`
	Escrow      *common.Address   `json:"escrow"` // null: of a factory, so that the escrow is not known
	Contract    common.Address    `json:"contract"`
	TxHash      common.Hash       `json:"txHash"`
	LogIndex    uint64            `json:"logIndex"` // the node's
	Topics      []common.Hash     `json:"topics"`
	Data        hexutil.Bytes     `json:"data"`
	Reason      string            `json:"reason"`
	ParkedAt    timefmt.Timestamp `json:"parkedAt"`
}

// Parked returns the matching logs that do not decode, in the order of the chain: the newest, if there are more than the limit.
func (a *Admin) Parked(ctx context.Context, f Filter) ([]Parked, error) {
	rows, err := a.db.Query(ctx, `SELECT event_id, block_number, block_hash, escrow, contract, tx_hash, log_index, topics, data, reason, parked_at
		FROM escrow_parked WHERE `+where+` ORDER BY block_number DESC, event_id DESC LIMIT $5`, f.args(a, f.limit())...)
	if err != nil {
		return nil, fmt.Errorf("read the parked logs of chain %d: %w", a.ChainID, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Parked])
	if err != nil {
		return nil, fmt.Errorf("read the parked logs of chain %d: %w", a.ChainID, err)
	}
	slices.Reverse(list)
	return list, nil
}
