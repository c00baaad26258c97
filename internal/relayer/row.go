package relayer

import (
	"cmp"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// TransactionRow is a row of relayer_txs, and a transaction as operators' scripts read it. Amounts are wei, in decimal
// digits. A null column is nil, or the zero time.
//
// The db tags are the columns' names, for pgx.RowToStructByName, and marks, for [Columns].
type TransactionRow struct {
	ID           uuid.UUID `db:"id,new" json:"id"`
	ChainID      uint64    `db:"chain_id" json:"-"`
	Pool         string    `db:"pool_id" json:"-"`
	Status       Status    `db:"status,new" json:"status"`
	StatusReason string    `db:"status_reason" json:"statusReason"`
	Intent       Intent    `db:"intent,new" json:"intent"`
	IntentReason string    `db:"intent_reason" json:"-"`
	Kind         Kind      `db:"kind,new" json:"kind"`
	Caller       string    `db:"caller,new" json:"caller"`
	Target       string    `db:"target,new" json:"target"`
	Key          *string   `db:"relayer_address,new" json:"key"`
	Nonce        *uint64   `db:"nonce,new" json:"nonce"`
	Hash         *string   `db:"tx_hash" json:"hash"`
	Attempts     int       `db:"attempts" json:"attempts"`
	Revision     int       `db:"revision" json:"revision"`

	To             *string       `db:"to_address,new,contents" json:"to"` // nil: it creates a contract
	Value          string        `db:"value_wei,new,contents,numeric" json:"value"`
	Data           hexutil.Bytes `db:"data,new,contents" json:"data"`
	GasLimit       uint64        `db:"gas_limit,new,contents" json:"gasLimit"`
	Speed          Speed         `db:"speed,new,contents" json:"speed"`
	GasPrice       *string       `db:"gas_price,new,contents,numeric" json:"gasPrice"`
	MaxFee         *string       `db:"max_fee,new,contents,numeric" json:"maxFeePerGas"`
	MaxPriorityFee *string       `db:"max_priority,new,contents,numeric" json:"maxPriorityFeePerGas"`
	ValidUntil     Timestamp     `db:"valid_until,new,contents" json:"validUntil"`
	Reserve        *string       `db:"reserve_wei,new,numeric" json:"-"`

	Method    string `db:"method,new" json:"method"`
	Orderbook string `db:"orderbook,new" json:"orderbook"`
	Trader    string `db:"trader,new" json:"trader"`
	RequestID string `db:"request_id,new" json:"requestId"`
	TraceID   string `db:"trace_id,new" json:"traceId"`
	// Traceparent is the parent of the spans of its signatures.
	Traceparent string `db:"traceparent,new" json:"-"`

	BlockNumber       *uint64 `db:"block_number" json:"blockNumber"`
	BlockHash         *string `db:"block_hash" json:"blockHash"`
	GasUsed           *uint64 `db:"gas_used" json:"gasUsed"`
	EffectiveGasPrice *string `db:"gas_price_paid,numeric" json:"effectiveGasPrice"`

	CreatedAt       Timestamp `db:"created_at,new" json:"createdAt"`
	UpdatedAt       Timestamp `db:"updated_at,new" json:"updatedAt"`
	SentAt          Timestamp `db:"sent_at" json:"sentAt"`
	MinedAt         Timestamp `db:"mined_at" json:"minedAt"`
	ConfirmedAt     Timestamp `db:"confirmed_at" json:"confirmedAt"`
	BumpRequestedAt Timestamp `db:"bump_requested_at" json:"-"`

	// The columns below are for the store's statements alone: [Transaction] does not have them.

	Open         bool      `db:"open" json:"-"`
	Unsuccessful bool      `db:"unsuccessful" json:"-"`
	BudgetDay    Timestamp `db:"budget_day" json:"-"`
	KeyBudgetDay Timestamp `db:"key_budget_day" json:"-"`
	Succeeded    *bool     `db:"succeeded" json:"-"`
	MinedPurpose *Purpose  `db:"mined_purpose" json:"-"`
	TakenBackAt  Timestamp `db:"taken_back_at" json:"-"`
	Generation   int       `db:"generation" json:"-"`

	// The fees of the attempt that has the row's hash, where a query selects them.
	OfferedFee *string `db:"offered_fee,joined" json:"-"`
	OfferedTip *string `db:"offered_tip,joined" json:"-"`
}

// Row returns t as a row.
func (t *Transaction) Row() *TransactionRow {
	m := &t.Metadata
	r := &TransactionRow{
		ID: t.ID, ChainID: t.ChainID, Pool: t.Pool, Status: t.Status, StatusReason: t.StatusReason, Intent: t.Intent,
		IntentReason: t.IntentReason, Kind: t.Kind, Caller: t.Caller, Target: t.Target, Key: convert(orNil(t.From), hexAddress),
		Nonce: t.Nonce, Hash: convert(t.Hash, common.Hash.Hex), Attempts: t.Attempts, Revision: t.Revision,
		To: convert(t.To, hexAddress), Value: *cmp.Or(Decimal(t.Value), new("0")), Data: t.Data, GasLimit: t.GasLimit, Speed: t.Speed,
		GasPrice: Decimal(t.GasPrice), MaxFee: Decimal(t.MaxFee), MaxPriorityFee: Decimal(t.MaxPriorityFee),
		ValidUntil: Timestamp{Time: t.ValidUntil}, Reserve: Decimal(t.Reserve),
		Method: m.Method, Orderbook: m.Orderbook, Trader: m.Trader, RequestID: m.RequestID, TraceID: m.TraceID, Traceparent: t.Traceparent,
		BlockHash: convert(orNil(t.BlockHash), common.Hash.Hex), GasUsed: orNil(t.GasUsed), EffectiveGasPrice: Decimal(t.EffectiveGasPrice),
		CreatedAt: Timestamp{Time: t.CreatedAt}, UpdatedAt: Timestamp{Time: t.UpdatedAt}, SentAt: Timestamp{Time: t.SentAt}, MinedAt: Timestamp{Time: t.MinedAt},
		ConfirmedAt: Timestamp{Time: t.ConfirmedAt}, BumpRequestedAt: Timestamp{Time: t.BumpRequestedAt},
		OfferedFee: Decimal(t.OfferedFee), OfferedTip: Decimal(t.OfferedTip),
	}
	if r.Data == nil {
		r.Data = hexutil.Bytes{} // the column is not null
	}
	if r.BlockHash != nil {
		r.BlockNumber = new(t.BlockNumber)
	}
	return r
}

// Transaction returns the transaction of a row.
func (r *TransactionRow) Transaction() *Transaction {
	return &Transaction{
		ID: r.ID, ChainID: r.ChainID, Pool: r.Pool, Target: r.Target, Caller: r.Caller, Kind: r.Kind,
		Request: Request{
			To: convert(r.To, common.HexToAddress), Value: ParseDecimal(&r.Value), Data: r.Data, GasLimit: r.GasLimit,
			GasPrice: ParseDecimal(r.GasPrice), MaxFee: ParseDecimal(r.MaxFee), MaxPriorityFee: ParseDecimal(r.MaxPriorityFee),
			Speed: r.Speed, ValidUntil: r.ValidUntil.Time,
			Metadata: Metadata{Method: r.Method, Orderbook: r.Orderbook, Trader: r.Trader, RequestID: r.RequestID, TraceID: r.TraceID}, Traceparent: r.Traceparent,
		},
		Status: r.Status, StatusReason: r.StatusReason, Intent: r.Intent, IntentReason: r.IntentReason, Revision: r.Revision,
		Reserve: ParseDecimal(r.Reserve), From: orZero(convert(r.Key, common.HexToAddress)), Nonce: r.Nonce, Attempts: r.Attempts,
		Hash: convert(r.Hash, common.HexToHash), OfferedFee: ParseDecimal(r.OfferedFee), OfferedTip: ParseDecimal(r.OfferedTip),
		BlockNumber: orZero(r.BlockNumber), BlockHash: orZero(convert(r.BlockHash, common.HexToHash)), GasUsed: orZero(r.GasUsed),
		EffectiveGasPrice: ParseDecimal(r.EffectiveGasPrice),
		CreatedAt:         r.CreatedAt.Time, UpdatedAt: r.UpdatedAt.Time, SentAt: r.SentAt.Time, MinedAt: r.MinedAt.Time,
		ConfirmedAt: r.ConfirmedAt.Time, BumpRequestedAt: r.BumpRequestedAt.Time,
	}
}

// AttemptRow is a row of relayer_attempts, and an attempt as operators' scripts read it. They do not get the signed bytes,
// because any reader could send them.
type AttemptRow struct {
	TxID           uuid.UUID `db:"tx_id,new" json:"-"`
	ChainID        uint64    `db:"chain_id" json:"-"`
	Number         int       `db:"attempt,new" json:"number"`
	Purpose        Purpose   `db:"purpose,new" json:"purpose"`
	Key            string    `db:"address,new" json:"key"`
	Nonce          uint64    `db:"nonce,new" json:"nonce"`
	Hash           string    `db:"tx_hash,new" json:"hash"`
	Raw            []byte    `db:"raw,new" json:"-"`
	MaxFee         string    `db:"max_fee,new,numeric" json:"maxFeePerGas"`
	MaxPriorityFee *string   `db:"max_priority,new,numeric" json:"maxPriorityFeePerGas"`
	CreatedAt      Timestamp `db:"created_at" json:"createdAt"`
	LastError      string    `db:"last_error" json:"lastError"`
	Resends        int       `db:"resends" json:"-"`
	NextSendAt     Timestamp `db:"next_send_at" json:"-"`
	Paused         bool      `db:"paused,joined" json:"-"`
}

// Row returns a as a row.
func (a *Attempt) Row() *AttemptRow {
	return &AttemptRow{
		TxID: a.TxID, Number: a.Number, Purpose: a.Purpose, Key: hexAddress(a.From), Nonce: a.Nonce, Hash: a.Hash.Hex(), Raw: a.Raw,
		MaxFee: a.MaxFee.String(), MaxPriorityFee: Decimal(a.MaxPriorityFee), CreatedAt: Timestamp{Time: a.CreatedAt}, LastError: a.LastError,
		Paused: a.Paused,
	}
}

// Attempt returns the attempt of a row.
func (r *AttemptRow) Attempt() *Attempt {
	return &Attempt{
		TxID: r.TxID, Number: r.Number, From: common.HexToAddress(r.Key), Nonce: r.Nonce, Purpose: r.Purpose, Hash: common.HexToHash(r.Hash),
		Raw: r.Raw, MaxFee: ParseDecimal(&r.MaxFee), MaxPriorityFee: ParseDecimal(r.MaxPriorityFee), CreatedAt: r.CreatedAt.Time, LastError: r.LastError,
		Paused: r.Paused,
	}
}

// Timestamp is a time of a row.
type Timestamp = timefmt.Timestamp

// Column is a column of a table.
type Column struct {
	Name    string
	Numeric bool // an amount: read and written as text, because the driver's encoding of numeric takes several times as long
	Field   reflect.StructField
}

// Columns returns the columns of a table with a mark, or all of them for "", by the db tags of the struct of its rows. A
// column marked new is inserted with a row; the others have their defaults then. Those marked contents can be replaced. A
// field marked joined is not a column of the table.
func Columns[Row any](mark string) (columns []Column) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Row]()) {
		marks := strings.Split(field.Tag.Get("db"), ",")
		if !slices.Contains(marks, "joined") && (mark == "" || slices.Contains(marks, mark)) {
			columns = append(columns, Column{marks[0], slices.Contains(marks, "numeric"), field})
		}
	}
	return columns
}

// SelectList returns the columns of a table for SELECT. table is its name or alias. Columns in others are read from other
// expressions.
func SelectList[Row any](table string, others map[string]string) string {
	var list []string
	for _, c := range Columns[Row]("") {
		expression := cmp.Or(others[c.Name], table+"."+c.Name)
		if c.Numeric {
			expression += "::text"
		}
		list = append(list, expression+" AS "+c.Name)
	}
	return strings.Join(list, ", ")
}

// Decimal formats an amount as text; nil for none.
func Decimal(n *big.Int) *string {
	if n == nil {
		return nil
	}
	return new(n.String())
}

// ParseDecimal parses the result of Decimal.
func ParseDecimal(s *string) *big.Int {
	if s == nil {
		return nil
	}
	n, _ := new(big.Int).SetString(*s, 10)
	return n
}

// hexAddress formats an address as it is stored: without the checksum, which costs ten times as much.
func hexAddress(a common.Address) string { return hexutil.Encode(a[:]) }

// convert applies f to a value that may be missing.
func convert[A, B any](value *A, f func(A) B) *B {
	if value == nil {
		return nil
	}
	return new(f(*value))
}

func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
