package signer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
)

// leak returns the part of a key that a text contains: six consecutive hex digits in either case, or four bytes, raw or
// as fmt prints slices.
func leak(text string, k signertest.Key) string {
	// An address is public, and may share six digits with a key by chance.
	lower := strings.ReplaceAll(strings.ToLower(text), strings.ToLower(k.Address.Hex()), "")
	digits := k.Hex()[2:]
	for at := range len(digits) - 5 {
		if strings.Contains(lower, digits[at:at+6]) {
			return digits[at : at+6]
		}
	}
	for at := range len(k.Bytes) - 3 {
		four := k.Bytes[at : at+4]
		for _, form := range []string{string(four), strings.Trim(fmt.Sprintf("%v", four), "[]"), strings.Trim(fmt.Sprintf("%#v", four)[6:], "{}")} {
			if strings.Contains(text, form) {
				return form
			}
		}
	}
	return ""
}

func requireNothingOf(t *testing.T, text string, keys ...signertest.Key) {
	t.Helper()
	for i, k := range keys {
		require.Empty(t, leak(text, k), "of key %d", i)
	}
}

func TestLeak_KeyText_IsDetected(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "leaks", 1)[0]
	for _, text := range []string{
		"x" + k.Hex()[10:16], strings.ToUpper(k.Hex()[60:]), fmt.Sprintf("%v", k.Bytes), fmt.Sprintf("%#v", k.Bytes), string(k.Bytes),
		fmt.Sprintf("%+v", struct{ k []byte }{k.Bytes}), reachable(&struct{ k *[]byte }{&k.Bytes}),
	} {
		require.NotEmpty(t, leak(text, k), text)
	}
	require.Empty(t, leak(k.Address.Hex(), k))
}

// reachable prints every value that reflection reaches, also through pointers, interfaces and unexported fields.
func reachable(value any) string {
	var out strings.Builder
	seen := map[uintptr]bool{}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() || seen[v.Pointer()] {
				return
			}
			seen[v.Pointer()] = true
			walk(v.Elem())
		case reflect.Interface:
			walk(v.Elem())
		case reflect.Struct:
			for _, field := range v.Fields() {
				walk(field)
			}
		case reflect.Slice, reflect.Array:
			if v.Type().Elem().Kind() == reflect.Uint8 {
				for i := range v.Len() {
					fmt.Fprintf(&out, "%02x", v.Index(i).Uint())
				}
				out.WriteString("\n")
				return
			}
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Map:
			for _, key := range v.MapKeys() {
				walk(key)
				walk(v.MapIndex(key))
			}
		case reflect.Invalid:
		default:
			fmt.Fprintf(&out, "%v %[1]x\n", v)
		}
	}
	walk(reflect.ValueOf(value))
	return out.String()
}

type holder struct {
	Signer  signer.Signer
	private signer.Signer
	ring    *signer.Ring
	Any     any
	List    []signer.Signer
}

func TestPrinting_ShowsNoKey(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "secrecy", 2)
	s := k[0].Signer
	ring, err := signer.New(signertest.Signers(k)...)
	require.NoError(t, err)
	h := holder{Signer: s, private: s, ring: ring, Any: s, List: []signer.Signer{s, signertest.NewFake(k[1].Signer)}}
	var out bytes.Buffer
	for _, value := range []any{s, ring, h, &h, []any{s, ring}, map[string]any{"s": s}, *ring, errors.Join(fmt.Errorf("%v", s))} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%U", "%t", "%p", "%T"} {
			fmt.Fprintf(&out, verb+"\n", value)
		}
		text, err := json.Marshal(value)
		require.NoError(t, err)
		out.Write(text)
		for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))} {
			log.Info("value", "value", value)
		}
		out.WriteString(reachable(value))
	}
	requireNothingOf(t, out.String(), k...)
	require.Equal(t, "signer "+k[0].Address.Hex(), fmt.Sprintf("%x", s))
	require.Equal(t, "keyring of 2", fmt.Sprintf("%#v", ring))
	text, err := json.Marshal(h)
	require.NoError(t, err)
	require.Contains(t, string(text), `"Signer":"`+k[0].Address.Hex()+`"`)
}
