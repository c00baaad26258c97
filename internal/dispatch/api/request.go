package api

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
)

// Bounds of a request.
const (
	maxBody    = 1 << 20
	maxData    = 128 << 10 // bytes of calldata: what nodes accept in a transaction
	maxGas     = 1 << 32
	maxIDBytes = 128
)

// directRequest is the body of a direct request. A field that is missing or null has the zero value.
type directRequest struct {
	transactionID   string
	chainID         *big.Int // that of the transactions; nil: not compared
	to              *common.Address
	value, gasLimit *big.Int
	data            []byte
	speed           dispatch.Speed
}

// field reads a field of the body.
func (r *directRequest) field(name, value []byte) (err error) {
	switch string(name) {
	case "transactionId":
		r.transactionID, err = optional(jsonbody.Text, "transactionId", value)
	case "chainId":
		r.chainID, err = optional(jsonbody.Amount, "chainId", value)
	case "to":
		r.to, err = optional(jsonbody.Address, "to", value)
	case "value":
		r.value, err = optional(jsonbody.Amount, "value", value)
	case "data":
		r.data, err = optional(calldata, "data", value)
	case "gasLimit":
		r.gasLimit, err = optional(jsonbody.Amount, "gasLimit", value)
	case "speed":
		r.speed, err = optional(speed, "speed", value)
	default:
		err = jsonbody.Unknown("", name, "transactionId", "chainId", "to", "value", "data", "gasLimit", "speed")
	}
	return err
}

// transaction returns the transaction that the request asks for.
func (r *directRequest) transaction() (*dispatch.Transaction, error) {
	if r.to == nil {
		return nil, dispatch.Invalidf("to", "is missing: give the address that is called")
	}
	gas := uint64(dispatch.DefaultGasLimit)
	if r.gasLimit != nil {
		var err error
		if gas, err = gasLimit("gasLimit", r.gasLimit); err != nil {
			return nil, err
		}
	}
	return &dispatch.Transaction{
		Kind: dispatch.Direct, ClientID: r.transactionID,
		Call: dispatch.Call{To: *r.to, Value: cmp.Or(r.value, new(big.Int)), Data: r.data, GasLimit: gas, Speed: cmp.Or(r.speed, dispatch.Average)},
	}, nil
}

// optional reads a value that may be null, which is as if it were missing.
func optional[T any](read func(field string, value []byte) (T, error), field string, value []byte) (v T, err error) {
	if jsonbody.IsNull(value) {
		return v, nil
	}
	return read(field, value)
}

func calldata(field string, value []byte) ([]byte, error) {
	b, err := jsonbody.Bytes(field, value)
	if err == nil && len(b) > maxData {
		err = dispatch.Invalidf(field, "must not have more than %d bytes, and has %d", maxData, len(b))
	}
	return b, err
}

func gasLimit(field string, n *big.Int) (uint64, error) {
	if n.Sign() == 0 || n.Cmp(big.NewInt(maxGas)) > 0 {
		return 0, dispatch.Invalidf(field, "must be 1 to %d, not %s", int64(maxGas), n)
	}
	return n.Uint64(), nil
}

func speed(field string, value []byte) (dispatch.Speed, error) {
	s, err := jsonbody.Text(field, value)
	if err != nil {
		return "", err
	}
	switch known := dispatch.Speed(s); known {
	case dispatch.Fastest, dispatch.Fast, dispatch.Average, dispatch.SafeLow:
		return known, nil
	}
	return "", dispatch.Invalidf(field, "must be fastest, fast, average or safeLow, not %q", jsonbody.Clip([]byte(s)))
}

// decode reads the body, and calls field for each of its fields.
func decode(w http.ResponseWriter, r *http.Request, field func(name, value []byte) error) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if body, err = jsonbody.Object(body); err == nil {
		err = jsonbody.Fields(body, "", field)
	}
	return invalid(err)
}

// invalid returns the domain's error for one of jsonbody's.
func invalid(err error) error {
	if b, ok := errors.AsType[*jsonbody.Error](err); ok {
		return &dispatch.InvalidError{Field: b.Field, Problem: b.Problem}
	}
	return err
}

// tooLarge returns the error of a body above a limit.
func tooLarge(most int64) error {
	return &statusError{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("the body must not have more than %d bytes", most)}
}

// readBody reads the body, which is bounded.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		w.Header().Set("Connection", "close") // instead of reading it all
		return nil, tooLarge(maxBody)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge(maxBody)
	}
	if err != nil {
		return nil, dispatch.Invalidf("", "the body ended early")
	}
	return body, nil
}

// identify sets the ids of a new transaction, by its body and the header Idempotency-Key.
func identify(tx *dispatch.Transaction, client string, h http.Header) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make an id: %w", err)
	}
	keys := h["Idempotency-Key"]
	switch {
	case len(keys) > 1:
		return dispatch.Invalidf("Idempotency-Key", "is there twice")
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
		return dispatch.Invalidf(field, `must have 1 to %d visible ASCII characters without /, ?, #, %%, " and \`, maxIDBytes)
	}
	return nil
}
