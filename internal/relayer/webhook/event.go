package webhook

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/ozapi"
)

// The events, in OpenZeppelin's words.
const (
	EventTransaction  = "transaction_update"
	EventRelayerState = "relayer_state_update"
)

// Body is a webhook.
type Body[P any] struct {
	ID        string `json:"id"` // the delivery's: the same in each attempt
	Event     string `json:"event"`
	Payload   P      `json:"payload"`
	Timestamp string `json:"timestamp"` // of the attempt
}

// TransactionUpdate is the payload of [EventTransaction].
type TransactionUpdate struct {
	PayloadType string `json:"payload_type"` // "transaction"
	ozapi.Transaction
	// Revision grows with each change of the transaction: what has a lower one than the highest seen is old.
	Revision int `json:"revision"`
}

// RelayerDisabled is the payload of [EventRelayerState] when the system took a relayer out.
type RelayerDisabled struct {
	PayloadType   string        `json:"payload_type"` // "relayer_disabled"
	Relayer       ozapi.Relayer `json:"relayer"`
	DisableReason string        `json:"disable_reason"`
}

// RelayerEnabled is the payload of [EventRelayerState] when it came back.
type RelayerEnabled struct {
	PayloadType string        `json:"payload_type"` // "relayer_enabled"
	Relayer     ozapi.Relayer `json:"relayer"`
	RetryCount  uint32        `json:"retry_count"` // how many checks it took
}

// snapshot is a row of relayer_txs as Postgres writes it in JSON. Amounts exceed what a float holds; big.Int reads
// them digit by digit.
type snapshot struct {
	ID             uuid.UUID       `json:"id"`
	ChainID        uint64          `json:"chain_id"`
	PoolID         string          `json:"pool_id"`
	Target         string          `json:"target"`
	Caller         string          `json:"caller"`
	Kind           relayer.Kind    `json:"kind"`
	RelayerAddress *common.Address `json:"relayer_address"`
	Nonce          *uint64         `json:"nonce"`
	TxHash         *common.Hash    `json:"tx_hash"`
	Status         relayer.Status  `json:"status"`
	StatusReason   string          `json:"status_reason"`
	Intent         relayer.Intent  `json:"intent"`
	Revision       int             `json:"revision"`
	Attempts       int             `json:"attempts"`
	ToAddress      *common.Address `json:"to_address"`
	ValueWei       *big.Int        `json:"value_wei"`
	Data           *string         `json:"data"`
	GasLimit       uint64          `json:"gas_limit"`
	Speed          relayer.Speed   `json:"speed"`
	GasPrice       *big.Int        `json:"gas_price"`
	MaxFee         *big.Int        `json:"max_fee"`
	MaxPriority    *big.Int        `json:"max_priority"`
	ValidUntil     *time.Time      `json:"valid_until"`
	Method         string          `json:"method"`
	Orderbook      string          `json:"orderbook"`
	Trader         string          `json:"trader"`
	RequestID      string          `json:"request_id"`
	TraceID        string          `json:"trace_id"`
	BlockNumber    *uint64         `json:"block_number"`
	BlockHash      *common.Hash    `json:"block_hash"`
	GasUsed        *uint64         `json:"gas_used"`
	GasPricePaid   *big.Int        `json:"gas_price_paid"`
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
	SentAt         *time.Time      `json:"sent_at"`
	MinedAt        *time.Time      `json:"mined_at"`
	ConfirmedAt    *time.Time      `json:"confirmed_at"`
	// Not the row's: what the attempt with the hash offers, which does not change.
	OfferedFee *big.Int `json:"offered_fee"`
	OfferedTip *big.Int `json:"offered_tip"`
}

// transaction restores the transaction as it was; data is the row's, where the snapshot does not hold it.
func transaction(raw json.RawMessage, data []byte) (*relayer.Transaction, error) {
	var s snapshot
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if s.Data != nil {
		decoded, err := hex.DecodeString(strings.TrimPrefix(*s.Data, `\x`)) // as Postgres writes bytes
		if err != nil {
			return nil, fmt.Errorf("read snapshot: data: %w", err)
		}
		data = decoded
	}
	return &relayer.Transaction{
		ID: s.ID, ChainID: s.ChainID, Pool: s.PoolID, Target: s.Target, Caller: s.Caller, Kind: s.Kind,
		Request: relayer.Request{
			To: s.ToAddress, Value: s.ValueWei, Data: data, GasLimit: s.GasLimit,
			GasPrice: s.GasPrice, MaxFee: s.MaxFee, MaxPriorityFee: s.MaxPriority, Speed: s.Speed,
			ValidUntil: orZero(s.ValidUntil),
			Metadata: relayer.Metadata{
				Method: s.Method, Orderbook: s.Orderbook, Trader: s.Trader, RequestID: s.RequestID, TraceID: s.TraceID,
			},
		},
		Status: s.Status, StatusReason: s.StatusReason, Intent: s.Intent, Revision: s.Revision,
		From: orZero(s.RelayerAddress), Nonce: s.Nonce, Attempts: s.Attempts, Hash: s.TxHash,
		OfferedFee: s.OfferedFee, OfferedTip: s.OfferedTip,
		BlockNumber: orZero(s.BlockNumber), BlockHash: orZero(s.BlockHash), GasUsed: orZero(s.GasUsed),
		EffectiveGasPrice: s.GasPricePaid,
		CreatedAt:         s.CreatedAt, UpdatedAt: s.UpdatedAt,
		SentAt: orZero(s.SentAt), MinedAt: orZero(s.MinedAt), ConfirmedAt: orZero(s.ConfirmedAt),
	}, nil
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// body is what is sent for a claim at a time.
func (c *claim) body(at time.Time) ([]byte, error) {
	var payload any
	switch c.event {
	case EventTransaction:
		tx, err := transaction(c.snapshot, c.data)
		if err != nil {
			return nil, err
		}
		payload = TransactionUpdate{PayloadType: "transaction", Transaction: ozapi.FromTransaction(tx), Revision: c.revision}
	case EventRelayerState:
		payload = c.snapshot
	default:
		return nil, fmt.Errorf("event %q is not known", c.event)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(Body[any]{ID: c.id.String(), Event: c.event, Payload: payload, Timestamp: ozapi.Time(at)}); err != nil {
		return nil, fmt.Errorf("write body: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
