package upstream

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
	"unicode"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// The headers of this project's relayer.
const (
	headerKey   = "Idempotency-Key"
	headerScope = "Idempotency-Scope"
)

// submissionBody is the body of a submission. The value is hex, because numbers above 2^53 do not survive every JSON
// decoder, and OpenZeppelin's reads decimal strings as hex.
type submissionBody struct {
	To       *common.Address `json:"to,omitempty"`
	Value    string          `json:"value"`
	Data     string          `json:"data,omitempty"`
	GasLimit uint64          `json:"gas_limit,omitempty"`
	Speed    string          `json:"speed,omitempty"`
}

// envelope wraps every response of the relayer's application. The responses to an invalid key and to too many requests have
// more fields.
type envelope struct {
	Success    *bool           `json:"success"`
	Data       json.RawMessage `json:"data"`
	Error      json.RawMessage `json:"error"` // a string or null
	Message    json.RawMessage `json:"message"`
	After      json.RawMessage `json:"after"` // seconds
	Pagination *struct {
		PerPage    int `json:"per_page"`
		TotalItems int `json:"total_items"`
	} `json:"pagination"`
}

// decodeEnvelope returns a body's envelope; false for any other body.
func decodeEnvelope(body []byte) (envelope, bool) {
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil || e.Success == nil {
		return envelope{}, false
	}
	return e, true
}

// text returns the envelope's error, and the message if it says more.
func (e *envelope) text() string {
	var problem, message string
	_ = json.Unmarshal(e.Error, &problem) // a value that is no string is no text
	_ = json.Unmarshal(e.Message, &message)
	switch {
	case problem == "":
		return message
	case message == "" || message == problem:
		return problem
	default:
		return problem + ": " + message
	}
}

type relayerBody struct {
	ID             string `json:"id"`
	Network        string `json:"network"`
	NetworkType    string `json:"network_type"`
	Paused         bool   `json:"paused"`
	SystemDisabled *bool  `json:"system_disabled"`
}

func (r *relayerBody) disabled() bool { return r.SystemDisabled != nil && *r.SystemDisabled }

type loadBody struct {
	Pending        *uint64 `json:"pending_transactions_count"`
	SystemDisabled bool    `json:"system_disabled"`
	Paused         bool    `json:"paused"`
}

// transactionBody has the fields of a transaction that are used. Other fields may have any type.
type transactionBody struct {
	ID           string  `json:"id"`
	Hash         *string `json:"hash"`
	Status       string  `json:"status"`
	StatusReason *string `json:"status_reason"`
	CreatedAt    string  `json:"created_at"`
	IsCanceled   *bool   `json:"is_canceled"`
	Revision     int     `json:"revision"`
	Effect
}

// Effect has the fields of a relayer's transaction that decide what it does. Fields of other types than text are as if they were missing.
type Effect struct {
	To    text `json:"to"`
	Value text `json:"value"`
	Data  text `json:"data"`
}

// Call returns the receiver, the data and the value; missing and unreadable ones are nil. complete reports that all of them were there
// and could be read: only then can the effect be compared. A call without a receiver is not complete, because the relay path creates
// no contracts.
func (e *Effect) Call() (to *common.Address, data []byte, value *big.Int, complete bool) {
	if common.IsHexAddress(e.To.string) {
		to = new(common.HexToAddress(e.To.string))
	}
	data, err := hexBytes(e.Data.string)
	value = amount(e.Value.string)
	return to, data, value, to != nil && value != nil && e.Data.given && err == nil
}

// text is an optional text.
type text struct {
	string
	given bool // it was there, as null or as a text that is not empty
}

// UnmarshalJSON implements [json.Unmarshaler]. It accepts everything.
func (t *text) UnmarshalJSON(b []byte) error {
	err := json.Unmarshal(b, &t.string)
	t.given = err == nil && (t.string != "" || isNull(b))
	return nil
}

// Transaction is a transaction as the relayer returned it. Missing values are zero.
type Transaction struct {
	ID         string
	Hash       common.Hash     // zero until it was sent
	Status     dispatch.Status // never "" in an answer to Get or Cancel; otherwise "" if the relayer's word is no known one
	Pending    bool            // the relayer has accepted and not sent it; the Status is [dispatch.Submitted]
	Reason     string          // of the status
	Revision   int             // grows with each change; 0: the relayer has none
	IsCanceled bool            // a no-op takes its nonce, or it was canceled before it was signed

	To    *common.Address // nil creates a contract
	Data  []byte
	Value *big.Int // wei; nil if the relayer's text is no amount
	// CallComplete reports that the relayer's answer had all three, so that they can be compared.
	CallComplete bool

	CreatedAt time.Time
}

// These are the reasons why a response reports nothing about a transaction.
var (
	errNoTransaction = errors.New("the response holds no transaction")
	errNoStatus      = errors.New("the response holds no known status of the transaction")
)

// decodeTransaction reads a transaction. Only the id is required, because a transaction with another unreadable field still exists.
func (c *Client) decodeTransaction(raw json.RawMessage) (Transaction, error) {
	t, _, err := c.decode(raw)
	return t, err
}

// decodeAnswer reads a response about the transaction with an id. It fails without a known status, because another relayer may report
// one.
func (c *Client) decodeAnswer(raw json.RawMessage, id string) (Transaction, error) {
	t, word, err := c.decode(raw)
	switch {
	case err != nil:
		return Transaction{}, err
	case t.ID != id:
		return Transaction{}, errNoTransaction
	case t.Status == "":
		return Transaction{}, fmt.Errorf("%w: %q", errNoStatus, c.printable(word))
	}
	return t, nil
}

// decode reads a transaction, and returns the relayer's word for its status, too.
func (c *Client) decode(raw json.RawMessage) (t Transaction, word string, err error) {
	var b transactionBody
	if err := json.Unmarshal(raw, &b); err != nil {
		return Transaction{}, "", errNoTransaction
	}
	if !ValidID(b.ID) {
		return Transaction{}, "", errNoTransaction
	}
	t = Transaction{ID: b.ID, Pending: strings.EqualFold(b.Status, "pending"), Revision: max(0, b.Revision)}
	if status, known := dispatch.StatusAt(b.Status); known {
		t.Status = status
	}
	if b.Hash != nil {
		if h, err := hexBytes(*b.Hash); err == nil && len(h) == common.HashLength {
			t.Hash = common.BytesToHash(h)
		}
	}
	if b.StatusReason != nil {
		t.Reason = c.printable(*b.StatusReason)
	}
	t.IsCanceled = b.IsCanceled != nil && *b.IsCanceled
	t.To, t.Data, t.Value, t.CallComplete = b.Call()
	t.CreatedAt = instant(b.CreatedAt)
	return t, b.Status, nil
}

func instant(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// amount reads 0x hex or a decimal number below 2^256; nil for anything else.
func amount(s string) *big.Int {
	digits, base := s, 10
	if rest, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		digits, base = rest, 16
	}
	const longest = 78 // decimal digits of 2^256-1
	if len(digits) > longest || strings.Trim(strings.ToLower(digits), "0123456789abcdef") != "" {
		return nil
	}
	n, ok := new(big.Int).SetString(digits, base)
	if !ok || n.BitLen() > 256 {
		return nil
	}
	return n
}

func hexBytes(s string) ([]byte, error) {
	if len(s) > 1 && s[0] == '0' && s[1]|0x20 == 'x' {
		s = s[2:]
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("hex: %w", err)
	}
	return b, nil
}

// printable returns a text from outside in a form that Postgres stores and a terminal prints, bounded, and without the API
// key, which a proxy's error may repeat.
func (c *Client) printable(s string) string {
	return clip(strings.ReplaceAll(s, c.cfg.Key, "[API key]"))
}

func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// isNull reports whether a value is missing or null.
func isNull(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }
