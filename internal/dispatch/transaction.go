package dispatch

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// Kind is the kind of a transaction.
type Kind string

// The kinds.
const (
	Direct  Kind = "direct"  // the client's own call
	Gasless Kind = "gasless" // the call of a signer, by a forwarder (ERC-2771)
)

// Speed is how much a relayer offers for a transaction: OpenZeppelin Relayer's names.
type Speed string

// The speeds. A request without one is [Average].
const (
	Fastest Speed = "fastest"
	Fast    Speed = "fast"
	Average Speed = "average"
	SafeLow Speed = "safeLow"
)

// DefaultGasLimit is the gas limit of a direct request without one.
const DefaultGasLimit = 100_000

// Transaction is a transaction of the relay path.
type Transaction struct {
	ID     uuid.UUID // of version 7: ids are in the order of acceptance, to the millisecond
	Client string    // the name of the API key
	// ClientID is the id that the client has chosen, or "". A client's ids are unique.
	ClientID string
	// IdempotencyKey is the key of the request, or "". A client's keys are unique.
	IdempotencyKey string
	Kind           Kind
	Call
	Forward *Forward // of a gasless transaction

	Status   Status
	Reason   string // of the status, for people; may be empty
	Revision int    // 1 when accepted; grows with each change

	Route
	Hash        *common.Hash // nil until the relayer has signed it
	Traceparent string       // W3C trace context of the request; may be empty
	// Withdrawn is how many relayers that had accepted it do not have it any more, and WithdrawnFrom is the scope from which the
	// reconciler withdrew it last.
	Withdrawn     int
	WithdrawnFrom string
	// RequestFailed reports that the relayer has answered the request of this attempt with a 500: it does not process it any more, and may
	// have stored it.
	RequestFailed bool
	// Reported is the relayer's own revision in its last report; 0 without one.
	Reported int
	// Attempt counts how often it was given to a relayer. A process that waits for a relayer's answer keeps the number that it began with:
	// the answer belongs to that attempt alone.
	Attempt int

	CreatedAt   time.Time
	SubmittedAt time.Time // zero: not accepted by a relayer yet
	UpdatedAt   time.Time // of the last change
	// AcceptedAt is CreatedAt, ChangedAt is UpdatedAt, and QuietSince the time of the last change, or of the end of the last request that a
	// relayer may still process, if that is later. These three are on this process's clock, the others on the database's; zero if the
	// transaction was not read from there.
	AcceptedAt, ChangedAt, QuietSince time.Time

	Evidence
}

// RelayerKey is the idempotency key at relayers. After a withdrawal it is another one: the former one names what was canceled.
func (t *Transaction) RelayerKey() string {
	if t.Withdrawn == 0 {
		return t.ID.String()
	}
	return fmt.Sprintf("%s.%d", t.ID, t.Withdrawn)
}

// Submission returns the transaction's current submission.
func (t *Transaction) Submission() Submission {
	return Submission{ID: t.ID, Attempt: t.Attempt, RelayerTx: t.RelayerTx}
}

// PublicID is the id that the client uses: its own, or the transaction's.
func (t *Transaction) PublicID() string {
	if t.ClientID != "" {
		return t.ClientID
	}
	return t.ID.String()
}

// Call is what a relayer is to send.
type Call struct {
	To       common.Address
	Value    *big.Int // wei; never nil
	Data     []byte
	GasLimit uint64
	Speed    Speed
}

// Digest identifies the effect of a call: its receiver, value and data.
func (c *Call) Digest() [sha256.Size]byte {
	b := append(make([]byte, 0, 64+len(c.Data)), c.To[:]...)
	b = append(b, common.LeftPadBytes(c.Value.Bytes(), 32)...)
	return sha256.Sum256(append(b, c.Data...))
}

// Forward identifies a gasless transaction at its forwarder.
type Forward struct {
	Signer   common.Address
	Nonce    *big.Int
	Deadline uint64 // Unix seconds, below 2^48: far beyond the times of Postgres
}

// Route is the relayer that a transaction was given to. It is empty until a consumer has chosen one.
type Route struct {
	Relayer   string // id of the service
	URL       string // its base URL
	RelayerID string // id of the relayer or pool behind that URL
	// Scope names the relayers that share idempotency keys with this one; "" if it has none. Within a scope the same key is
	// the same transaction.
	Scope string
	// RelayerTx is the relayer's id of the transaction; "" until it has accepted it.
	RelayerTx string
}

// Submission identifies one submission of a transaction that a relayer has accepted.
type Submission struct {
	ID        uuid.UUID
	Attempt   int
	RelayerTx string
}

// RequestHash returns equal hashes for requests with the same meaning. It ignores ids, keys and the trace.
func (t *Transaction) RequestHash() [sha256.Size]byte {
	// The form has a version, because hashes are stored: if it changes, former hashes must not match by accident.
	b := append(make([]byte, 0, 256+len(t.Data)), 1)
	part := func(p []byte) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	part([]byte(t.Kind))
	part(t.To[:])
	part(t.Value.Bytes())
	part(t.Data)
	b = binary.BigEndian.AppendUint64(b, t.GasLimit)
	part([]byte(t.Speed))
	if t.Forward != nil {
		part(t.Forward.Signer[:])
		part(t.Forward.Nonce.Bytes())
		b = binary.BigEndian.AppendUint64(b, t.Forward.Deadline)
	}
	return sha256.Sum256(b)
}

// Update is a relayer's report of a transaction, by a webhook or by a lookup.
type Update struct {
	// ID is the transaction, if it is known; the zero value stands for the only one with the relayer's id.
	ID        uuid.UUID
	RelayerTx string
	// Attempt is the attempt that the report belongs to; 0 if only the relayer's id shows that. A report of an earlier attempt changes
	// nothing.
	Attempt int
	Status  Status // submitted, mined or a final one
	Hash    *common.Hash
	Reason  string
	// Revision orders the updates of relayers that number them; 0 if the relayer does not.
	Revision int
	// Known is the revision that the row had from the relayer when it was asked. It is set in an answer to a direct question alone. If the
	// answer's revision is lower, and the row still has that one, the relayer's history went back, as after a restore from a backup.
	Known int
	// At is when the relayer made the report; zero if that is not known. Such a report without a revision may be late: it only moves a
	// transaction forward.
	At time.Time
	// Call is the receiver, value and data that the report contains; nil if it does not contain all of them. A relayer may use the nonce
	// of a transaction for another call, such as a no-op, and report that as mined.
	Call *Call
	// CallDigest is the digest of Call where only that is known.
	CallDigest []byte
}

// Digest returns the digest of the reported call; nil if the report does not contain all of it.
func (u *Update) Digest() []byte {
	if u.Call == nil {
		return u.CallDigest
	}
	digest := u.Call.Digest()
	return digest[:]
}
