package webhook

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// The events, with OpenZeppelin's names.
const (
	EventTransaction  = "transaction_update"
	EventRelayerState = "relayer_state_update"
)

// Body is the body of a webhook.
type Body[P any] struct {
	ID        string `json:"id"` // the delivery's: the same in each attempt
	Event     string `json:"event"`
	Payload   P      `json:"payload"`
	Timestamp string `json:"timestamp"` // of the attempt
}

// TransactionUpdate is the payload of [EventTransaction].
type TransactionUpdate struct {
	PayloadType string `json:"payload_type"` // "transaction"
	openzeppelin.Transaction
	// Revision grows with each change of the transaction: a lower revision than the highest seen is outdated.
	Revision int `json:"revision"`
}

// RelayerDisabled is the payload of [EventRelayerState] when the system disabled a relayer.
type RelayerDisabled struct {
	PayloadType   string               `json:"payload_type"` // "relayer_disabled"
	Relayer       openzeppelin.Relayer `json:"relayer"`
	DisableReason string               `json:"disable_reason"`
}

// RelayerEnabled is the payload of [EventRelayerState] when a relayer is enabled again.
type RelayerEnabled struct {
	PayloadType string               `json:"payload_type"` // "relayer_enabled"
	Relayer     openzeppelin.Relayer `json:"relayer"`
	RetryCount  uint32               `json:"retry_count"` // number of checks until then
}

// txChange is a transaction as it was at one change.
type txChange struct {
	tx *relayer.Transaction // nil if its row was deleted
	// contents are those at the change; nil if the row still has them.
	contents json.RawMessage
}

// contents are a transaction's contents as the store copies them. Amounts exceed the range of a float; big.Int parses
// them exactly.
type contents struct {
	ToAddress   *common.Address `json:"to_address"`
	ValueWei    *big.Int        `json:"value_wei"`
	Data        string          `json:"data"` // hex, after \x
	GasLimit    uint64          `json:"gas_limit"`
	Speed       relayer.Speed   `json:"speed"`
	GasPrice    *big.Int        `json:"gas_price"`
	MaxFee      *big.Int        `json:"max_fee"`
	MaxPriority *big.Int        `json:"max_priority"`
	ValidUntil  *time.Time      `json:"valid_until"`
}

// scan reads a row of a claim into c, without an id if the row has none. It returns the number of deferred rows.
func (c *claim) scan(row pgx.CollectableRow) (deferred int, err error) {
	tx := new(relayer.Transaction)
	m := &tx.Metadata
	var target, status, reason, intent, caller, to, value, speed, price, fee, tip, method, book, trader, request, trace, offered, offeredTip *string
	var id, subject *uuid.UUID
	var name *string
	var revision, attempt, attempts *int
	var from, hash []byte
	var limit *uint64
	var enqueued, next, sent, confirmed, created, until *time.Time
	if err := row.Scan(&deferred, &id, &name, &subject, &revision, &attempt, &enqueued, &next, &c.payload,
		&target, &status, &reason, &intent, &attempts, &from, &tx.Nonce, &hash, &sent, &confirmed, &c.change.contents,
		&caller, &created, &to, &value, &tx.Data, &limit, &speed, &price, &fee,
		&tip, &until, &method, &book, &trader, &request, &trace, &offered, &offeredTip); err != nil {
		return 0, err
	}
	c.id, c.target, c.subject, c.revision, c.attempt = orZero(id), orZero(name), orZero(subject), orZero(revision), orZero(attempt)
	c.created, c.nextAt = orZero(enqueued), orZero(next)
	if c.payload != nil || created == nil {
		return deferred, nil
	}
	tx.ID, tx.Target, tx.Caller, tx.Kind, tx.Revision = c.subject, orZero(target), orZero(caller), relayer.KindTransaction, c.revision
	tx.Status, tx.StatusReason, tx.Intent = relayer.Status(orZero(status)), orZero(reason), relayer.IntentSend
	if intent != nil {
		tx.Intent = relayer.Intent(*intent)
	}
	tx.Attempts, tx.From = orZero(attempts), common.BytesToAddress(from)
	if hash != nil {
		tx.Hash = new(common.BytesToHash(hash))
	}
	if to != nil {
		tx.To = new(common.HexToAddress(*to))
	}
	tx.Value, tx.GasLimit, tx.Speed, tx.ValidUntil = decimal(value), orZero(limit), relayer.Speed(orZero(speed)), orZero(until)
	tx.GasPrice, tx.MaxFee, tx.MaxPriorityFee = decimal(price), decimal(fee), decimal(tip)
	tx.OfferedFee, tx.OfferedTip = decimal(offered), decimal(offeredTip)
	m.Method, m.Orderbook, m.Trader, m.RequestID, m.TraceID = orZero(method), orZero(book), orZero(trader), orZero(request), orZero(trace)
	tx.CreatedAt, tx.SentAt, tx.ConfirmedAt = *created, orZero(sent), orZero(confirmed)
	c.change.tx = tx
	return deferred, nil
}

// errPurged is why a replayed delivery becomes a dead letter if its transaction has been deleted.
var errPurged = errors.New("its transaction was deleted because of its age")

// transaction returns the transaction with the contents that it had at the change.
func (c *txChange) transaction() (*relayer.Transaction, error) {
	if c.tx == nil {
		return nil, errPurged
	}
	if c.contents == nil {
		return c.tx, nil
	}
	var was contents
	if err := json.Unmarshal(c.contents, &was); err != nil {
		return nil, fmt.Errorf("read contents: %w", err)
	}
	data, err := hex.DecodeString(strings.TrimPrefix(was.Data, `\x`)) // the format of bytea in Postgres
	if err != nil {
		return nil, fmt.Errorf("read contents: data: %w", err)
	}
	tx := *c.tx
	tx.To, tx.Value, tx.Data, tx.GasLimit, tx.Speed = was.ToAddress, was.ValueWei, data, was.GasLimit, was.Speed
	tx.GasPrice, tx.MaxFee, tx.MaxPriorityFee, tx.ValidUntil = was.GasPrice, was.MaxFee, was.MaxPriority, orZero(was.ValidUntil)
	return &tx, nil
}

// decimal parses an amount in the database's format.
func decimal(s *string) *big.Int {
	if s == nil {
		return nil
	}
	n, _ := new(big.Int).SetString(*s, 10)
	return n
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// body returns the body to send for a claim at a time.
func (c *claim) body(at time.Time) ([]byte, error) {
	var payload any = c.payload
	event := EventRelayerState
	if c.payload == nil {
		tx, err := c.change.transaction()
		if err != nil {
			return nil, err
		}
		event, payload = EventTransaction, TransactionUpdate{PayloadType: "transaction", Transaction: openzeppelin.FromTransaction(tx), Revision: c.revision}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(Body[any]{ID: c.id.String(), Event: event, Payload: payload, Timestamp: openzeppelin.Time(at)}); err != nil {
		return nil, fmt.Errorf("write body: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
