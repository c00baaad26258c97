package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// Args are the arguments of an event, in the order of its ABI. As JSON they are an object with the ABI's names, and all values are
// strings: integers in decimal digits; addresses, hashes and bytes as 0x and lower-case hex digits; true or false; lists and structs as
// JSON. An indexed argument without a fixed size is a hash: the log has no more.
type Args []Arg

// Arg is an argument of an event.
type Arg struct{ Name, Value string }

// Get returns the value of an argument; "" if there is none.
func (a Args) Get(name string) string {
	for _, arg := range a {
		if arg.Name == name {
			return arg.Value
		}
	}
	return ""
}

// MarshalJSON implements json.Marshaler.
func (a Args) MarshalJSON() ([]byte, error) {
	fields := make([]field, len(a))
	for i, arg := range a {
		fields[i] = field{arg.Name, arg.Value}
	}
	return object(fields)
}

// UnmarshalJSON implements json.Unmarshaler. It keeps the order of the members.
func (a *Args) UnmarshalJSON(text []byte) error {
	*a = Args{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return fmt.Errorf("arguments must be a JSON object: %w", err)
	}
	for decoder.More() {
		var arg Arg
		name, err := decoder.Token()
		if err != nil {
			return err
		}
		arg.Name, _ = name.(string)
		if err := decoder.Decode(&arg.Value); err != nil {
			return err
		}
		*a = append(*a, arg)
	}
	return nil
}

// field is a member of an object.
type field struct {
	name  string
	value any
}

// object returns a JSON object with members in order.
func object(fields []field) ([]byte, error) {
	out := []byte{'{'}
	for i, f := range fields {
		if i > 0 {
			out = append(out, ',')
		}
		name, err := encode(f.name)
		if err != nil {
			return nil, err
		}
		value, err := encode(f.value)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, name...), ':'), value...)
	}
	return append(out, '}'), nil
}

// encode is json.Marshal without the escapes for HTML.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// errTopics means that a log has another number of topics than every layout of the event.
var errTopics = errors.New("no layout has this number of indexed arguments")

// errShared means that values of a log share its bytes, or are beyond its end.
var errShared = errors.New("data: its values take more bytes than it has")

// decode returns the arguments of a log of the event.
func (e *Event) decode(topics []common.Hash, data []byte) (Args, error) {
	values := make(map[string]any, len(e.inputs))
	for i, in := range e.indexed {
		topic := topics[1+i]
		if hashed(in.Type) {
			values[in.Name] = topic
			continue
		}
		one := abi.Arguments{in}
		if err := abi.ParseTopicsIntoMap(values, one, []common.Hash{topic}); err != nil {
			return nil, fmt.Errorf("argument %s: %w", in.Name, err)
		}
		// ParseTopicsIntoMap ignores the bytes before an address.
		if packed, err := one.Pack(values[in.Name]); err != nil || !bytes.Equal(packed, topic[:]) {
			return nil, fmt.Errorf("argument %s: its topic is not as contracts encode it", in.Name)
		}
	}
	if !unshared(e.plain, data) {
		return nil, errShared
	}
	plain, err := e.plain.Unpack(data)
	if len(e.plain) == 0 {
		plain, err = nil, nil // Unpack refuses no data, and ignores any
	}
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	// Unpack ignores the bytes before an address.
	if packed, err := e.plain.Pack(plain...); err != nil || static(e.plain) && !bytes.Equal(packed, data) {
		return nil, errors.New("data: is not as contracts encode these arguments")
	}
	for i, in := range e.plain {
		values[in.Name] = plain[i]
	}
	args := make(Args, len(e.inputs))
	for i, in := range e.inputs {
		text, err := format(in.Type, reflect.ValueOf(values[in.Name]))
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", in.Name, err)
		}
		args[i] = Arg{in.Name, text}
	}
	return args, nil
}

// hashed reports whether an indexed argument is a hash in the log.
func hashed(t abi.Type) bool {
	switch t.T {
	case abi.StringTy, abi.BytesTy, abi.SliceTy, abi.ArrayTy, abi.TupleTy:
		return true
	}
	return false
}

// unshared reports whether the values of data take no more bytes than it has. Contracts encode them like that. But offsets may also point to
// the same bytes many times, and Unpack would copy these each time: 96 KB of nested lists take gigabytes.
func unshared(args abi.Arguments, data []byte) bool {
	left := len(data)
	return take(&left, data, len(args), func(i int) abi.Type { return args[i].Type })
}

// take subtracts the bytes of n values, whose heads are at the beginning of data, from those that are left. It reads as Unpack does, and
// returns false if none are left, or if a value is beyond the end.
func take(left *int, data []byte, n int, typeOf func(int) abi.Type) bool {
	at := 0
	for i := range n {
		t := typeOf(i)
		size := headSize(t)
		if *left -= size; *left < 0 || len(data)-at < size || dynamic(t) && !takeTail(left, data, at, t) {
			return false
		}
		at += size
	}
	return true
}

// takeTail does as take for the part of a value to which the offset in its head points.
func takeTail(left *int, data []byte, head int, t abi.Type) bool {
	offset, ok := size(data, head)
	if !ok {
		return false
	}
	data = data[offset:]
	switch t.T {
	case abi.ArrayTy:
		return take(left, data, t.Size, func(int) abi.Type { return *t.Elem })
	case abi.TupleTy:
		return take(left, data, len(t.TupleElems), func(i int) abi.Type { return *t.TupleElems[i] })
	}
	n, ok := size(data, 0)
	if *left -= 32; !ok || *left < 0 {
		return false
	}
	if t.T == abi.SliceTy {
		return take(left, data[32:], n, func(int) abi.Type { return *t.Elem })
	}
	*left -= n
	return *left >= 0
}

// size reads a word that is an offset or a length within data.
func size(data []byte, at int) (int, bool) {
	if len(data)-at < 32 {
		return 0, false
	}
	n := new(big.Int).SetBytes(data[at : at+32])
	return int(n.Int64()), n.Cmp(big.NewInt(int64(len(data)))) <= 0
}

// headSize returns how many bytes a value takes in its list: all, or an offset to the others.
func headSize(t abi.Type) (n int) {
	switch {
	case dynamic(t):
	case t.T == abi.ArrayTy:
		return t.Size * headSize(*t.Elem)
	case t.T == abi.TupleTy:
		for _, elem := range t.TupleElems {
			n += headSize(*elem)
		}
		return n
	}
	return 32
}

// static reports whether all arguments have a fixed size.
func static(args abi.Arguments) bool {
	for _, a := range args {
		if dynamic(a.Type) {
			return false
		}
	}
	return true
}

func dynamic(t abi.Type) bool {
	switch t.T {
	case abi.StringTy, abi.BytesTy, abi.SliceTy:
		return true
	case abi.ArrayTy:
		return dynamic(*t.Elem)
	case abi.TupleTy:
		for _, elem := range t.TupleElems {
			if dynamic(*elem) {
				return true
			}
		}
	}
	return false
}

// supported returns an error if format has no text for a type.
func supported(t abi.Type) error {
	switch t.T {
	case abi.IntTy, abi.UintTy, abi.BoolTy, abi.StringTy, abi.AddressTy, abi.BytesTy, abi.FixedBytesTy, abi.FunctionTy:
		return nil
	case abi.SliceTy, abi.ArrayTy:
		return supported(*t.Elem)
	case abi.TupleTy:
		for _, elem := range t.TupleElems {
			if err := supported(*elem); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("the type %s is not supported", t)
}

// errText means that a string has bytes that JSON cannot hold.
var errText = errors.New("is a string that is not UTF-8")

// format returns the text of a value that go-ethereum has decoded as a type.
func format(t abi.Type, v reflect.Value) (string, error) {
	if hash, ok := reflect.TypeAssert[common.Hash](v); ok { // indexed, without a fixed size
		return hash.Hex(), nil
	}
	switch t.T {
	case abi.IntTy, abi.UintTy:
		if n, ok := reflect.TypeAssert[*big.Int](v); ok {
			return n.String(), nil
		}
		if v.CanInt() {
			return strconv.FormatInt(v.Int(), 10), nil
		}
		return strconv.FormatUint(v.Uint(), 10), nil
	case abi.BoolTy:
		return strconv.FormatBool(v.Bool()), nil
	case abi.StringTy:
		if !utf8.ValidString(v.String()) {
			return "", errText
		}
		return v.String(), nil
	case abi.AddressTy:
		return hexutil.Encode(v.Interface().(common.Address).Bytes()), nil
	case abi.BytesTy:
		return hexutil.Encode(v.Bytes()), nil
	case abi.FixedBytesTy, abi.FunctionTy:
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		return hexutil.Encode(b), nil
	case abi.SliceTy, abi.ArrayTy:
		list := make([]json.RawMessage, v.Len())
		for i := range list {
			text, err := nested(*t.Elem, v.Index(i))
			if err != nil {
				return "", err
			}
			list[i] = text
		}
		text, err := encode(list)
		return string(text), err
	case abi.TupleTy:
		fields := make([]field, len(t.TupleElems))
		for i, elem := range t.TupleElems {
			text, err := nested(*elem, v.Field(i))
			if err != nil {
				return "", err
			}
			fields[i] = field{t.TupleRawNames[i], text}
		}
		text, err := object(fields)
		return string(text), err
	}
	return "", supported(t)
}

// nested returns a value within a list or a struct: a list or struct is JSON there, and anything else a JSON string.
func nested(t abi.Type, v reflect.Value) (json.RawMessage, error) {
	text, err := format(t, v)
	if err != nil {
		return nil, err
	}
	switch t.T {
	case abi.SliceTy, abi.ArrayTy, abi.TupleTy:
		return json.RawMessage(text), nil
	}
	return encode(text)
}
