package events

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// Status is how far an event is settled.
type Status string

// The statuses.
const (
	Pending   Status = "pending"   // in a block that a reorganization can still remove
	Final     Status = "final"     // in a final block
	Retracted Status = "retracted" // a reorganization has removed its block
)

// Envelope is the part of a message that a topic shows beside its bytes.
type Envelope struct {
	EventID  string `json:"event_id"`
	Revision int    `json:"revision"` // from 1, and higher with each message of the event
	Status   Status `json:"status"`
	// Sequence counts the messages of the escrow: 1, 2, 3 and so on, without gaps.
	Sequence int64          `json:"sequence"`
	Type     string         `json:"type"`
	ChainID  uint64         `json:"chain_id"`
	Escrow   common.Address `json:"escrow"`
}

// Message is what consumers receive about an event. Under one EventID the highest Revision counts.
type Message struct {
	Envelope
	Contract common.Address `json:"contract"` // that emitted it
	// The block is the event's. Of a retracted event it is the one that was removed.
	BlockNumber uint64      `json:"block_number"`
	BlockHash   common.Hash `json:"block_hash"`
	BlockTime   time.Time   `json:"block_time"` // to the second
	TxHash      common.Hash `json:"tx_hash"`
	LogIndex    uint64      `json:"log_index"` // the node's, which may repeat
	Args        Args        `json:"args"`
	// Late reports that an operator has added it by a backfill, after messages of later blocks.
	Late bool `json:"late,omitempty"`
	// Replay reports that an operator has asked for it again.
	Replay bool `json:"replay,omitempty"`
}

// Encode returns the message as JSON.
func (m *Message) Encode() ([]byte, error) { return encode(m) }

// Replayed returns an encoded message as a replay: the same bytes, and the member replay at the end.
func Replayed(text []byte) []byte {
	body := bytes.TrimSuffix(text, []byte("}"))
	return append(slices.Clip(body), `,"replay":true}`...)
}

// Attributes returns the attributes of the message at a topic, which equal members of its JSON.
func (e *Envelope) Attributes() map[string]string {
	return map[string]string{
		"event_id": e.EventID, "revision": strconv.Itoa(e.Revision), "sequence": strconv.FormatInt(e.Sequence, 10), "status": string(e.Status),
		"type": e.Type, "escrow": e.OrderingKey(), "chain_id": strconv.FormatUint(e.ChainID, 10),
	}
}

// OrderingKey returns the escrow's address in lower case. A topic keeps the order of the messages of a key.
func (e *Envelope) OrderingKey() string { return hexutil.Encode(e.Escrow[:]) }

// Partitions is the number of partitions of the escrows. Each total of up to 10 instances divides it, and 12, 14, 15, 18 and 20, so that
// for these an escrow's partition modulo the total is its address modulo the total.
const Partitions = 2520

// Partition returns the partition of an escrow: its address, as a number, modulo [Partitions].
func Partition(escrow common.Address) int {
	n := 0
	for _, b := range escrow {
		n = (n<<8 | int(b)) % Partitions
	}
	return n
}
