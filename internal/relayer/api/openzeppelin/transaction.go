package openzeppelin

import (
	"encoding/hex"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Transaction is a transaction in the API's responses and in webhooks. A nil field is null, never omitted.
type Transaction struct {
	ID           string            `json:"id"`
	Hash         *string           `json:"hash"`
	Status       relayer.APIStatus `json:"status"`
	StatusReason *string           `json:"status_reason"`
	CreatedAt    string            `json:"created_at"` // times are RFC 3339 in UTC, with microseconds
	SentAt       *string           `json:"sent_at"`
	ConfirmedAt  *string           `json:"confirmed_at"`

	// The fees are the requested ones; if none were requested, those of the attempt that Hash names.
	GasPrice *string `json:"gas_price"` // wei, decimal, as all fees
	GasLimit *uint64 `json:"gas_limit"`
	Nonce    *uint64 `json:"nonce"`
	Value    string  `json:"value"` // wei, 0x hex
	From     string  `json:"from"`  // "" until a pool's key is chosen
	To       *string `json:"to"`    // nil for a contract creation
	// RelayerID is the relayer that it was posted to.
	RelayerID            string         `json:"relayer_id"`
	Data                 *string        `json:"data"` // 0x hex
	MaxFeePerGas         *string        `json:"max_fee_per_gas"`
	MaxPriorityFeePerGas *string        `json:"max_priority_fee_per_gas"`
	Signature            *Signature     `json:"signature"`
	Speed                *relayer.Speed `json:"speed"`
	IsCanceled           *bool          `json:"is_canceled"` // a no-op takes its nonce, or it was canceled before it was signed

	// Revision is an addition to OpenZeppelin's API: it grows with each change, and orders this answer and webhooks.
	Revision int `json:"revision,omitempty"`
	// Metadata is an addition to OpenZeppelin's API: the request's metadata. It is omitted if there is none.
	Metadata *Metadata `json:"metadata,omitempty"`
}

// Metadata is a request's metadata, by which transactions can be listed. It includes the ids from the request's headers.
type Metadata struct {
	Method    string `json:"method,omitempty"`
	Orderbook string `json:"orderbook,omitempty"`
	Trader    string `json:"trader,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	TraceID   string `json:"trace_id,omitempty"`
}

// Signature is a signature made with a relayer's key, in hex without 0x.
type Signature struct {
	R   string `json:"r"`
	S   string `json:"s"`
	V   uint8  `json:"v"` // 27 or 28
	Sig string `json:"sig"`
}

// FromTransaction returns t in the API's format.
func FromTransaction(t *relayer.Transaction) Transaction {
	out := Transaction{
		ID:                   t.ID.String(),
		Status:               t.Status.API(t.Attempts > 0),
		StatusReason:         orNil(t.StatusReason),
		CreatedAt:            Time(t.CreatedAt),
		SentAt:               TimeOrNull(t.SentAt),
		ConfirmedAt:          TimeOrNull(t.ConfirmedAt),
		GasPrice:             relayer.Decimal(t.GasPrice),
		GasLimit:             orNil(t.GasLimit),
		Nonce:                t.Nonce,
		Value:                "0x0",
		RelayerID:            t.Target,
		MaxFeePerGas:         relayer.Decimal(t.MaxFee),
		MaxPriorityFeePerGas: relayer.Decimal(t.MaxPriorityFee),
		Speed:                orNil(t.Speed),
		IsCanceled:           new(t.Intent == relayer.IntentCancel || t.Status == relayer.Canceled),
		Revision:             t.Revision,
		Metadata:             orNil(Metadata(t.Metadata)),
	}
	if t.GasPrice == nil && t.MaxFee == nil && t.MaxPriorityFee == nil { // the request set no fees
		if t.OfferedTip == nil {
			out.GasPrice = relayer.Decimal(t.OfferedFee)
		} else {
			out.MaxFeePerGas, out.MaxPriorityFeePerGas = relayer.Decimal(t.OfferedFee), relayer.Decimal(t.OfferedTip)
		}
	}
	if t.Hash != nil {
		out.Hash = new(hex0x(t.Hash[:]))
	}
	if t.Value != nil {
		out.Value = "0x" + t.Value.Text(16)
	}
	switch {
	case t.From != (common.Address{}):
		out.From = t.From.Hex()
	case common.IsHexAddress(t.Target): // no other key may send it
		out.From = common.HexToAddress(t.Target).Hex()
	}
	if t.To != nil {
		out.To = new(t.To.Hex())
	}
	if len(t.Data) > 0 {
		out.Data = new(hex0x(t.Data))
	}
	return out
}

// NewSignature splits a signature of 65 bytes: r, s, and v as 0 or 1, or as 27 or 28.
func NewSignature(sig [65]byte) Signature {
	if sig[64] < 27 {
		sig[64] += 27
	}
	return Signature{
		R: hex.EncodeToString(sig[:32]), S: hex.EncodeToString(sig[32:64]), V: sig[64], Sig: hex.EncodeToString(sig[:]),
	}
}

// Time returns t in the API's format.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// TimeOrNull returns t as Time does, and nil for the zero time.
func TimeOrNull(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(Time(t))
}

func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func hex0x(b []byte) string {
	out := make([]byte, 2+2*len(b))
	copy(out, "0x")
	hex.Encode(out[2:], b)
	return string(out)
}
