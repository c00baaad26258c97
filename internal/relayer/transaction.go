package relayer

import (
	"cmp"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// Speed says how much a transaction may pay to be mined soon, in OpenZeppelin's words.
type Speed string

// The speeds, the cheapest first.
const (
	SafeLow Speed = "safeLow"
	Average Speed = "average"
	Fast    Speed = "fast"
	Fastest Speed = "fastest"
)

// Speeds are all of them, the cheapest first.
var Speeds = []Speed{SafeLow, Average, Fast, Fastest}

// Metadata is what a caller says about a request, to find it again. Each field may be empty and has at most
// [MaxMetadataBytes].
type Metadata struct {
	Method    string // what it does, such as "fillOrder"; by default the selector of its data
	Orderbook string
	Trader    string // on whose behalf; limits and budgets apply to each
	RequestID string
	TraceID   string
}

// MaxMetadataBytes bounds each field of a request's metadata.
const MaxMetadataBytes = 256

// Request is what a caller wants to have sent. Amounts are wei, never negative and below 2^256.
type Request struct {
	To    *common.Address // nil: the data creates a contract
	Value *big.Int
	Data  []byte

	GasLimit uint64 // 0: estimated
	// Fees: a legacy gas price, or EIP-1559's two, or none of them: then Speed decides.
	GasPrice, MaxFee, MaxPriorityFee *big.Int
	Speed                            Speed

	ValidUntil time.Time // zero: it does not expire
	Metadata   Metadata
}

// Kind says whose transaction a row is.
type Kind string

// The kinds.
const (
	KindTransaction Kind = "transaction" // a caller's
	KindNoop        Kind = "noop"        // ours, from a key to itself: it fills a nonce that nobody else would
	KindTopUp       Kind = "topup"       // ours: it funds a key
	KindForeign     Kind = "foreign"     // somebody else sent it with our key
)

// Intent is what a transaction's nonce is to be used for.
type Intent string

// The intents. All but the first mean that a no-op takes, or has taken, the nonce.
const (
	IntentSend   Intent = "send"
	IntentCancel Intent = "cancel"
	IntentExpire Intent = "expire"
	IntentFail   Intent = "fail"
)

// Transaction is a request and its outcome so far. Fields that the row does not have yet are zero or nil.
type Transaction struct {
	ID      uuid.UUID // version 7: sorts by time of acceptance
	ChainID uint64
	Pool    string
	Target  string // what it was posted to: the pool's id, or a key's address
	Caller  string // the name of the API key that it came with
	Kind    Kind
	Request

	Status       Status
	StatusReason string
	Intent       Intent
	Revision     int // grows with every change of status
	// Reserve is what its gas may cost by the fees at acceptance, wei; nil where nobody reckoned.
	Reserve *big.Int

	From     common.Address // zero until a key is chosen
	Nonce    *uint64        // nil until then; one for life, but for what the store's documentation says of foreign transactions
	Attempts int            // signed so far
	Hash     *common.Hash   // of the latest attempt that was broadcasted, or of the one that was mined
	// OfferedFee, or the legacy gas price, and OfferedTip, nil for a legacy transaction, are that attempt's; wei. Nil where a
	// transaction is not read to be shown.
	OfferedFee, OfferedTip *big.Int

	BlockNumber       uint64
	BlockHash         common.Hash
	GasUsed           uint64
	EffectiveGasPrice *big.Int

	CreatedAt, UpdatedAt         time.Time
	SentAt, MinedAt, ConfirmedAt time.Time // first broadcast; in the block's own time; past the finality depth
}

// OnlyKey is the only key that may send the transaction: the one that has it, or the one that it was posted to; zero for any of
// its pool.
func (t *Transaction) OnlyKey() common.Address {
	if t.From == (common.Address{}) && t.Target != t.Pool {
		return common.HexToAddress(t.Target)
	}
	return t.From
}

// Cost is what a transaction with a value may take from its key at most, wei, if its gas may cost reserve; nil stands for nothing.
func Cost(value, reserve *big.Int) *big.Int {
	return new(big.Int).Add(cmp.Or(value, new(big.Int)), cmp.Or(reserve, new(big.Int)))
}

// Purpose says what the bytes of an attempt do.
type Purpose string

// The purposes.
const (
	PurposeSend    Purpose = "send"    // what the caller asked for
	PurposeReplace Purpose = "replace" // what the caller asked for later, with the same nonce
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
	LastError      string // what a node last said against it
	// Paused reports whether it was sent a short while ago, and is not to be sent again yet.
	Paused bool
}

// Supersedes reports whether the attempt is a no-op with the nonce that the transaction has now.
func (a *Attempt) Supersedes(t *Transaction) bool {
	return a.Purpose == PurposeNoop && t.Nonce != nil && a.Nonce == *t.Nonce && a.From == t.From
}
