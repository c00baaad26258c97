package relayer

import (
	"cmp"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// Speed selects how much a transaction may pay to be mined soon, in OpenZeppelin's terms.
type Speed string

// The speeds, the cheapest first.
const (
	SafeLow Speed = "safeLow"
	Average Speed = "average"
	Fast    Speed = "fast"
	Fastest Speed = "fastest"
)

// Speeds are all speeds, the cheapest first.
var Speeds = []Speed{SafeLow, Average, Fast, Fastest}

// Metadata is the caller's description of a request, to find it again. Each field may be empty and has at most
// [MaxMetadataBytes].
type Metadata struct {
	Method    string // what it does, such as "fillOrder"; by default the selector of its data
	Orderbook string
	Trader    string // the trader on whose behalf it is sent; limits and budgets apply to each
	RequestID string
	TraceID   string
}

// MaxMetadataBytes bounds each field of a request's metadata.
const MaxMetadataBytes = 256

// Request is a caller's request to send a transaction. Amounts are wei, never negative and below 2^256.
type Request struct {
	To    *common.Address // nil: the data creates a contract
	Value *big.Int
	Data  []byte

	GasLimit uint64 // 0: estimated
	// Fees: a legacy gas price, or the two of EIP-1559, or none: then Speed decides.
	GasPrice, MaxFee, MaxPriorityFee *big.Int
	Speed                            Speed

	ValidUntil time.Time // zero: it does not expire
	Metadata   Metadata
	// Traceparent is the W3C trace context of the request that posted it; it may be empty. It is not part of the contents.
	Traceparent string
}

// Kind is the origin of a row's transaction.
type Kind string

// The kinds.
const (
	KindTransaction Kind = "transaction" // a caller's
	KindNoop        Kind = "noop"        // ours, from a key to itself: it fills a nonce without another transaction
	KindTopUp       Kind = "topup"       // ours: it funds a key
	KindForeign     Kind = "foreign"     // sent with our key by another sender
)

// Intent is the intended use of a transaction's nonce.
type Intent string

// The intents. All but the first mean that a no-op takes, or has taken, the nonce.
const (
	IntentSend   Intent = "send"
	IntentCancel Intent = "cancel"
	IntentExpire Intent = "expire"
	IntentFail   Intent = "fail"
)

// Transaction is a request and its outcome so far. Missing values are zero or nil.
type Transaction struct {
	ID      uuid.UUID // version 7: sorts by time of acceptance
	ChainID uint64
	Pool    string
	Target  string // the target that it was posted to: the pool's id, or a key's address
	Caller  string // the name of the API key that it came with
	Kind    Kind
	Request

	Status       Status
	StatusReason string
	Intent       Intent
	IntentReason string // why it was canceled, expired or failed; "" if it was not
	Revision     int    // grows with every change of status
	// Reserve is its maximum gas cost by the fees at acceptance, wei; nil if that was not computed.
	Reserve *big.Int

	From     common.Address // zero until a key is chosen
	Nonce    *uint64        // nil until then; it changes only as package store's documentation describes
	Attempts int            // signed so far
	Hash     *common.Hash   // of the latest attempt that was broadcasted, or of the mined one
	// OfferedFee (or the legacy gas price) and OfferedTip (nil for a legacy transaction) are those of that attempt, wei.
	// They are nil unless the transaction was read to be shown.
	OfferedFee, OfferedTip *big.Int

	BlockNumber       uint64
	BlockHash         common.Hash
	GasUsed           uint64
	EffectiveGasPrice *big.Int

	CreatedAt, UpdatedAt         time.Time
	SentAt, MinedAt, ConfirmedAt time.Time // first broadcast; the block's time; past the finality depth
	BumpRequestedAt              time.Time // when an operator last requested a higher fee; zero for never
}

// OnlyKey returns the only key that may send the transaction: its own, or the one that it was posted to. It is zero for any
// of its pool.
func (t *Transaction) OnlyKey() common.Address {
	if t.From == (common.Address{}) && t.Target != t.Pool {
		return common.HexToAddress(t.Target)
	}
	return t.From
}

// Cost returns the most that a transaction may take from its key, wei: value plus reserve, the maximum gas cost. Nil counts
// as zero.
func Cost(value, reserve *big.Int) *big.Int {
	return new(big.Int).Add(cmp.Or(value, new(big.Int)), cmp.Or(reserve, new(big.Int)))
}

// Purpose is the purpose of an attempt.
type Purpose string

// The purposes.
const (
	PurposeSend    Purpose = "send"    // the caller's request
	PurposeReplace Purpose = "replace" // the caller's later request, with the same nonce
	PurposeNoop    Purpose = "noop"    // nothing, from the key to itself
)

// Attempt is one signed transaction for a nonce. Once stored it counts as possibly sent.
type Attempt struct {
	TxID    uuid.UUID
	Number  int // from 1
	From    common.Address
	Nonce   uint64
	Purpose Purpose
	Hash    common.Hash
	Raw     []byte   // the signed bytes
	MaxFee  *big.Int // or the legacy gas price
	// MaxPriorityFee is nil for a legacy transaction.
	MaxPriorityFee *big.Int
	CreatedAt      time.Time
	LastError      string // the last rejection by a node
	// Paused reports whether it was sent a short while ago, and must not be sent again yet.
	Paused bool
}

// Supersedes reports whether the attempt is a no-op with the transaction's current nonce.
func (a *Attempt) Supersedes(t *Transaction) bool {
	return a.Purpose == PurposeNoop && t.Nonce != nil && a.Nonce == *t.Nonce && a.From == t.From
}
