package signer

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPanic_Trace_ShowsNoKey also checks the words that a trace prints for arguments. For a key that is passed by
// value they would be the key's, in either byte order.
func TestPanic_Trace_ShowsNoKey(t *testing.T) {
	t.Parallel()
	key := hexKey(t, "8f3b2a1c9d4e5f60718293a4b5c6d7e8f9011223344556677889900aabbccdde")
	s, err := NewLocal(key)
	require.NoError(t, err)
	trace := func(f func()) (text string) {
		defer func() {
			text = fmt.Sprint(recover()) + string(debug.Stack())
			all := make([]byte, 1<<20)
			text += string(all[:runtime.Stack(all, true)])
		}()
		f()
		return ""
	}
	for _, text := range []string{
		trace(func() { _, _ = s.(*local).sign(nil) }), // panics within, with the key on the stack
		trace(func() { _, _ = (*local)(nil).Sign(context.Background(), [32]byte{}) }),
		trace(func() { panic(s) }),
		trace(func() { panic(fmt.Sprintf("%s %#v", s, s)) }),
	} {
		require.Contains(t, text, "relayer/signer")
		lower := strings.ToLower(text)
		for at := 0; at+8 <= len(key); at++ {
			word := key[at : at+8]
			for _, form := range []string{
				hex.EncodeToString(word[:3]), fmt.Sprintf("%x", binary.LittleEndian.Uint64(word)), fmt.Sprintf("%x", binary.BigEndian.Uint64(word)),
				fmt.Sprintf("%#x, %#x, %#x", word[0], word[1], word[2]),
			} {
				require.NotContains(t, lower, form)
			}
		}
	}
}
