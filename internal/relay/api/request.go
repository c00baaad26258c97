package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/relay"
)

// Bounds of a request.
const (
	maxBody    = 1 << 20
	maxData    = 128 << 10 // bytes of calldata: what nodes accept in a transaction
	maxGas     = 1 << 32
	maxIDBytes = 128
)

// address reads an address in hex with 0x. One with letters of both cases must have the checksum of EIP-55.
type address common.Address

func (a *address) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) != nil || !strings.HasPrefix(s, "0x") || !common.IsHexAddress(s) {
		return errors.New("must be an address, 0x and 40 hex digits")
	}
	*a = address(common.HexToAddress(s))
	if digits := s[2:]; digits != strings.ToLower(digits) && digits != strings.ToUpper(digits) && s != common.Address(*a).Hex() {
		return errors.New("has a wrong checksum: some character is mistyped (all letters in lower case skip the check)")
	}
	return nil
}

// amount reads 0 to 2^256-1: an integer, a decimal string or 0x hex, never through a float.
type amount big.Int

func (a *amount) UnmarshalJSON(text []byte) error {
	var n math.HexOrDecimal256
	if string(text) == `""` || bytes.ContainsAny(text, "-+._eE ") && !bytes.Contains(text, []byte("0x")) || n.UnmarshalJSON(text) != nil || (*big.Int)(&n).Sign() < 0 {
		return errors.New("must be a whole number from 0 to 2^256-1: an integer, a decimal string or 0x hex")
	}
	*a = amount(n)
	return nil
}

// orZero returns the amount; zero if it was not given.
func (a *amount) orZero() *big.Int {
	if a == nil {
		return new(big.Int)
	}
	return (*big.Int)(a)
}

// data reads bytes in hex with 0x.
type data []byte

func (d *data) UnmarshalJSON(text []byte) error {
	var b hexutil.Bytes
	if err := b.UnmarshalJSON(text); err != nil {
		return errors.New("must be hex with 0x and two digits a byte, such as 0xa9059cbb")
	}
	if len(b) > maxData {
		return fmt.Errorf("must not have more than %d bytes", maxData)
	}
	*d = data(b)
	return nil
}

// directRequest is the body of a direct request.
type directRequest struct {
	TransactionID string      `json:"transactionId"`
	To            *address    `json:"to"`
	Value         *amount     `json:"value"`
	Data          data        `json:"data"`
	GasLimit      *amount     `json:"gasLimit"`
	Speed         relay.Speed `json:"speed"`
}

// transaction returns the transaction that the request asks for.
func (r *directRequest) transaction() (*relay.Transaction, error) {
	if r.To == nil {
		return nil, relay.Invalidf("to", "is missing: give the address that is called")
	}
	gas, err := gasLimit(r.GasLimit)
	if err != nil {
		return nil, err
	}
	speed, err := checkSpeed(r.Speed)
	if err != nil {
		return nil, err
	}
	return &relay.Transaction{
		Kind: relay.Direct, ClientID: r.TransactionID,
		Call: relay.Call{To: common.Address(*r.To), Value: r.Value.orZero(), Data: r.Data, GasLimit: gas, Speed: speed},
	}, nil
}

func gasLimit(a *amount) (uint64, error) {
	if a == nil {
		return relay.DefaultGasLimit, nil
	}
	n := a.orZero()
	if n.Sign() == 0 || n.Cmp(big.NewInt(maxGas)) > 0 {
		return 0, relay.Invalidf("gasLimit", "must be 1 to %d", int64(maxGas))
	}
	return n.Uint64(), nil
}

func checkSpeed(s relay.Speed) (relay.Speed, error) {
	switch s {
	case "":
		return relay.Average, nil
	case relay.Fastest, relay.Fast, relay.Average, relay.SafeLow:
		return s, nil
	}
	return "", relay.Invalidf("speed", "must be fastest, fast, average or safeLow")
}

// decode reads a JSON object with known members alone.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return invalidJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return relay.Invalidf("", "the body must be one JSON object")
	}
	return nil
}

// invalidJSON names the member of the body that cannot be read, where the decoder says it.
func invalidJSON(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return relay.Invalidf(wrong.Field, "must not be a JSON %s", wrong.Value)
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return relay.Invalidf("", "the body must be a JSON object")
	}
	return relay.Invalidf("", "%s", strings.TrimPrefix(err.Error(), "json: "))
}

// errTooLarge is the error of a body above [maxBody].
var errTooLarge = &statusError{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("the body must not have more than %d bytes", maxBody)}

// readBody reads the body, which is bounded.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		w.Header().Set("Connection", "close") // instead of reading it all
		return nil, errTooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, errTooLarge
	}
	if err != nil {
		return nil, relay.Invalidf("", "the body ended early")
	}
	return body, nil
}

// identify sets the ids of a new transaction, by its body and the header Idempotency-Key.
func identify(tx *relay.Transaction, client string, h http.Header) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make an id: %w", err)
	}
	keys := h["Idempotency-Key"]
	switch {
	case len(keys) > 1:
		return relay.Invalidf("Idempotency-Key", "is there twice")
	case len(keys) == 1:
		tx.IdempotencyKey = keys[0]
		if err := checkID("Idempotency-Key", tx.IdempotencyKey); err != nil {
			return err
		}
	}
	if tx.ClientID != "" {
		if err := checkID("transactionId", tx.ClientID); err != nil {
			return err
		}
	}
	tx.ID, tx.Client = id, client
	return nil
}

func checkID(field, id string) error {
	if id == "" || len(id) > maxIDBytes || !apikey.IsVisible(id) || strings.ContainsAny(id, `/?#%"\`) {
		return relay.Invalidf(field, `must have 1 to %d visible ASCII characters without /, ?, #, %%, " and \`, maxIDBytes)
	}
	return nil
}
