package openzeppelin

import (
	"encoding/hex"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// minGas is the gas of the cheapest transaction.
const minGas = 21_000

// requestFields are the fields of a submission. Others are ignored.
var requestFields = []string{
	"to", "value", "data", "gas_limit", "gas_price", "max_fee_per_gas", "max_priority_fee_per_gas", "speed", "valid_until", "metadata",
}

// DecodeRequest reads the body of a submission. An invalid body fails with a [*relayer.InvalidError] that names the field.
// The relayer checks the rest, which depends on the clock, the chain or its policies. The default speed, without fees, is
// [relayer.Fast]. The default of metadata.method is the selector of the data. The request shares no memory with the body.
func DecodeRequest(body []byte) (relayer.Request, error) {
	r, err := DecodeReplacement(body)
	if err == nil && r.Metadata.Method == "" {
		r.Metadata.Method = selector(&r)
	}
	return r, err
}

// DecodeReplacement is [DecodeRequest] for the body of a replacement. It adds no metadata.
func DecodeReplacement(body []byte) (relayer.Request, error) {
	var r relayer.Request
	body, err := object(body)
	if err != nil {
		return r, err
	}
	err = fields(body, "", func(name, value []byte) (err error) {
		if jsonbody.IsNull(value) {
			return jsonbody.OtherCase("", name, requestFields...)
		}
		switch string(name) {
		case "to":
			r.To, err = jsonbody.Address("to", value)
		case "value":
			r.Value, err = jsonbody.Amount("value", value)
		case "data":
			r.Data, err = jsonbody.Bytes("data", value)
		case "gas_limit":
			if r.GasLimit, err = jsonbody.Count("gas_limit", value); err == nil && r.GasLimit < minGas {
				err = relayer.Invalidf("gas_limit", "must be at least %d, not %d; leave it out to have it estimated", minGas, r.GasLimit)
			}
		case "gas_price":
			r.GasPrice, err = jsonbody.Amount("gas_price", value)
		case "max_fee_per_gas":
			r.MaxFee, err = jsonbody.Amount("max_fee_per_gas", value)
		case "max_priority_fee_per_gas":
			r.MaxPriorityFee, err = jsonbody.Amount("max_priority_fee_per_gas", value)
		case "speed":
			r.Speed, err = speed(value)
		case "valid_until":
			r.ValidUntil, err = instant("valid_until", value)
		case "metadata":
			r.Metadata, err = metadata(value)
		default:
			err = jsonbody.OtherCase("", name, requestFields...)
		}
		return err
	})
	if err == nil {
		err = complete(&r)
	}
	if err != nil {
		return relayer.Request{}, err
	}
	return r, nil
}

// complete checks the combination of fields, and sets the defaults.
func complete(r *relayer.Request) error {
	switch {
	case r.To == nil && len(r.Data) == 0:
		return relayer.Invalidf("to", "to and data are both missing: give an address, or the code of a contract to create")
	case r.Value == nil:
		return relayer.Invalidf("value", "is missing: how many wei to send, 0 for none")
	case r.GasPrice != nil && (r.MaxFee != nil || r.MaxPriorityFee != nil):
		return relayer.Invalidf("gas_price", "can't be mixed with max_fee_per_gas and max_priority_fee_per_gas")
	case r.Speed != "" && (r.GasPrice != nil || r.MaxFee != nil || r.MaxPriorityFee != nil):
		return relayer.Invalidf("speed", "can't be mixed with fees: it decides them")
	case r.MaxFee == nil && r.MaxPriorityFee != nil:
		return relayer.Invalidf("max_fee_per_gas", "is missing beside max_priority_fee_per_gas")
	case r.MaxFee != nil && r.MaxPriorityFee == nil:
		return relayer.Invalidf("max_priority_fee_per_gas", "is missing beside max_fee_per_gas")
	case r.MaxFee != nil && r.MaxFee.Cmp(r.MaxPriorityFee) < 0:
		return relayer.Invalidf("max_fee_per_gas", "must not be below max_priority_fee_per_gas")
	}
	if r.GasPrice == nil && r.MaxFee == nil && r.Speed == "" {
		r.Speed = relayer.Fast
	}
	return nil
}

// selector returns the selector of the function that a request's data calls: 0x and eight digits, or nothing.
func selector(r *relayer.Request) string {
	const size = 4
	if r.To == nil || len(r.Data) < size {
		return ""
	}
	return "0x" + hex.EncodeToString(r.Data[:size])
}

func speed(value []byte) (relayer.Speed, error) {
	s, err := jsonbody.Text("speed", value)
	if err == nil && !slices.Contains(relayer.Speeds, relayer.Speed(s)) {
		err = relayer.Invalidf("speed", "must be one of %v, not %q", relayer.Speeds, jsonbody.Clip([]byte(s)))
	}
	return relayer.Speed(s), err
}

func instant(field string, value []byte) (time.Time, error) {
	s, err := jsonbody.Text(field, value)
	if err != nil {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.IsZero() {
		return time.Time{}, relayer.Invalidf(field, "must be a time as in RFC 3339, such as 2030-01-02T15:04:05Z, not %q", jsonbody.Clip([]byte(s)))
	}
	return t.UTC(), nil
}

func metadata(value []byte) (relayer.Metadata, error) {
	const path = "metadata"
	var m relayer.Metadata
	if value[0] != '{' {
		return m, relayer.Invalidf(path, "must be an object")
	}
	return m, fields(value, path, func(name, value []byte) error {
		var target *string
		var field string
		switch string(name) {
		case "method":
			target, field = &m.Method, "metadata.method"
		case "orderbook":
			target, field = &m.Orderbook, "metadata.orderbook"
		case "trader":
			target, field = &m.Trader, "metadata.trader"
		case "request_id":
			target, field = &m.RequestID, "metadata.request_id"
		case "trace_id":
			target, field = &m.TraceID, "metadata.trace_id"
		default:
			return jsonbody.Unknown(path, name, "method", "orderbook", "trader", "request_id", "trace_id")
		}
		if jsonbody.IsNull(value) {
			return nil
		}
		s, err := jsonbody.Text(field, value)
		if err != nil {
			return err
		}
		*target = s
		return CheckMetadata(field, s)
	})
}

// CheckMetadata rejects an invalid value of a request's metadata: more than [relayer.MaxMetadataBytes], control characters,
// or invalid UTF-8.
func CheckMetadata(field, s string) error {
	if len(s) > relayer.MaxMetadataBytes {
		return relayer.Invalidf(field, "has %d bytes, and at most %d are kept", len(s), relayer.MaxMetadataBytes)
	}
	if !utf8.ValidString(s) {
		return relayer.Invalidf(field, "must be UTF-8")
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return relayer.Invalidf(field, "must not hold control characters")
		}
	}
	return nil
}
