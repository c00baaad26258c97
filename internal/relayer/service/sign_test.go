package service_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
)

// lines receives the lines of a logger.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// about returns the next line that contains a text.
func (l lines) about(text string) string {
	for line := range l {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// A signed message is logged after signing, with its caller; a failure is in the error.
func TestSign_IsLogged(t *testing.T) {
	f := setup(t, 1)
	remote, ring := signertest.Faked(t, f.ring)
	f.options.Ring = ring
	logged := make(lines, 1000)
	r := f.start(t, func(c *service.Config) { c.Log = slog.New(slog.NewTextHandler(logged, nil)) })
	key := strings.ToLower(remote.Address().Hex())

	_, err := r.Sign(t.Context(), key, "first", []byte("hello"))
	require.NoError(t, err)
	line := logged.about("message ")
	require.Contains(t, line, `level=INFO msg="message signed"`)
	require.Contains(t, line, "caller=first")
	require.Contains(t, line, common.BytesToHash(accounts.TextHash([]byte("hello"))).Hex())

	remote.Fail(errors.New("the signer is away"))
	_, err = r.SignTypedData(t.Context(), key, "second", common.Hash{1}, common.Hash{2})
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	require.ErrorContains(t, err, "for second: ")
	require.ErrorContains(t, err, "the signer is away")
}

// A relayer with signing off returns another error than a disabled one.
func TestSign_SwitchedOff_SaysSo(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t, func(c *service.Config) { c.Signing = false })
	key := strings.ToLower(f.ring.Addresses()[0].Hex())
	_, err := r.Sign(t.Context(), key, "test", []byte("hello"))
	require.ErrorIs(t, err, relayer.ErrSigningOff)
	require.NotErrorIs(t, err, relayer.ErrDisabled)
	_, err = r.Update(t.Context(), key, "test", relayer.Patch{Paused: new(true)})
	require.NoError(t, err)
	_, err = r.SignTypedData(t.Context(), key, "test", common.Hash{1}, common.Hash{2})
	require.ErrorIs(t, err, relayer.ErrPaused)
}
