package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
)

// held is a role whose start is held at a stage.
type held struct {
	background
	at              []byte // in the log line of the stage
	reached, opened chan struct{}
	open            sync.Once
}

// startHeld starts a role, and returns when its start has reached a stage, which it does not begin before release.
func startHeld(t *testing.T, stage string, args ...string) *held {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	h := &held{
		background: background{cancel: cancel, done: make(chan struct{})},
		at:         []byte(`"msg":"starting","stage":"` + stage + `"`), reached: make(chan struct{}), opened: make(chan struct{}),
	}
	go func() {
		defer close(h.done)
		h.code = run(ctx, append(args, "--log-level", "debug"), &h.out, h)
	}()
	t.Cleanup(func() {
		h.release()
		h.stop()
	})
	select {
	case <-h.reached:
	case <-h.done:
		require.Fail(t, "the role ended before the stage", "%d: %s", h.code, &h.log)
	}
	return h
}

// Write implements [io.Writer]. It does not return from the line of the stage before release, and so the stage does not begin.
func (h *held) Write(line []byte) (int, error) {
	n, err := h.log.Write(line)
	if bytes.Contains(line, h.at) {
		close(h.reached)
		<-h.opened
	}
	return n, err
}

func (h *held) release() { h.open.Do(func() { close(h.opened) }) }

// A coordinator and a gateway answer from the first second, with the stage of the start.
func TestDiscoveryRoles_DuringStart_ReportTheStage(t *testing.T) {
	t.Parallel()
	coordinator, gateway, raft := freeAddress(t), freeAddress(t), freeAddress(t)
	for role, c := range map[string]struct {
		args        []string
		stage, http string
		pages       map[string]string
	}{
		"coordinator": {
			args: []string{
				"--node-id", "c1", "--peers", "c1=" + raft, "--listen", raft, "--http-listen", coordinator, "--data-dir", t.TempDir(),
				"--redis-url", "redis://" + freeAddress(t), "--relayer-count", "0",
			},
			stage: "disk and cluster port", http: coordinator,
			pages: map[string]string{
				"/healthz": "not ready: the coordinator is starting: disk and cluster port\n",
				"/readyz":  "not ready: the coordinator is starting: disk and cluster port\n",
				"/status":  `"notes":["the coordinator is starting: disk and cluster port"]`,
			},
		},
		"gateway": {
			args:  []string{"--id", "edge", "--definitions", t.TempDir(), "--listen", gateway, "--state-dir", t.TempDir(), "--coordinators", freeAddress(t)},
			stage: "state folder", http: gateway,
			pages: map[string]string{
				"/healthz":     `"what":"the gateway is starting: state folder"`,
				"/readyz":      `"what":"the gateway is starting: state folder"`,
				"/v1/services": `"what":"the gateway is starting: state folder"`,
			},
		},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			h := startHeld(t, c.stage, append([]string{role}, c.args...)...)
			for path, want := range c.pages {
				code, body := fetch(t, "http://"+c.http+path)
				require.Equal(t, http.StatusServiceUnavailable, code, path)
				require.Contains(t, body, want, path)
			}
			code, metrics := fetch(t, "http://"+c.http+"/metrics")
			require.Equal(t, http.StatusOK, code)
			require.Contains(t, metrics, "rollcall_build_info")
			h.release()
			h.await(t, "http://"+c.http+"/healthz")
			require.Zero(t, h.stop(), "%s", &h.log)
		})
	}
}

// keystoreSettings sets the variables of a relayer whose keys are in a keystore, and whose database is away.
func keystoreSettings(t *testing.T, folder, password string) {
	t.Helper()
	for name, value := range map[string]string{
		"DATABASE_URL": "postgres://" + freeAddress(t) + "/x", "RELAYER_CHAIN_ID": "1337", "RELAYER_RPC_URLS": "http://127.0.0.1:1",
		"RELAYER_API_KEYS": "me:" + someAPIKey, "RELAYER_KEYSTORE_DIR": folder, "RELAYER_KEYSTORE_PASSWORD": password,
	} {
		t.Setenv(name, value)
	}
}

// reaches waits until /health of a starting relayer has a reason.
func reaches(t *testing.T, b *background, listen, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		select {
		case <-b.done:
			t.Errorf("it ended with %d", b.code)
			return true
		default:
			code, body := get("http://" + listen + "/health")
			return code == http.StatusServiceUnavailable && body["reason"] == want
		}
	}, 2*time.Minute, time.Millisecond, "%s", &b.log)
}

// The keystore takes a processor twenty seconds. The stop ends that.
func TestRelayer_OpensKeystore_HTTPAnswers(t *testing.T) {
	folder, listen := t.TempDir(), freeAddress(t)
	sealed := fmt.Sprintf(`{"version":3,"crypto":{"cipher":"aes-128-ctr","cipherparams":{"iv":"%032x"},"ciphertext":"%064x","mac":"%064x",`+
		`"kdf":"pbkdf2","kdfparams":{"c":1048576,"prf":"hmac-sha256","dklen":32,"salt":"00"}}}`, 0, 0, 0)
	for i := range 100 {
		require.NoError(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("relayer-%d.json", i)), []byte(sealed), 0o600))
	}
	keystoreSettings(t, folder, "any")
	b := start(t, "relayer", "--listen", listen)
	reaches(t, b, listen, "starting: keys")
	require.Zero(t, b.stop(), "%s", &b.log)
}

// A keystore that cannot be used ends the relayer as all wrong settings do.
func TestRelayer_Keystore_IsCheckedByTheStart(t *testing.T) {
	const password, wrong = "correct horse battery staple", "Tr0ub4dor"
	folder, keys := t.TempDir(), signertest.Keys(t, "keystore", 2)
	signertest.WriteKeystore(t, folder, password, keys...)
	keystoreSettings(t, folder, password)
	t.Run("right password", func(t *testing.T) {
		listen := freeAddress(t)
		b := start(t, "relayer", "--listen", listen)
		reaches(t, b, listen, "starting: database: unreachable")
		require.Zero(t, b.stop())
	})
	for name, c := range map[string]struct {
		secret, want string
		settings     map[string]string
	}{
		"wrong password": {
			wrong, folder + "/relayer-0.json: the password does not open it, or it is damaged", map[string]string{"RELAYER_KEYSTORE_PASSWORD": wrong},
		},
		"funding key is a relayer's": {
			keys[1].Hex(), "RELAYER_TOPUP_KEY: the funding key must not be a relayer's: ", map[string]string{
				"RELAYER_TOPUP_KEY": keys[1].Hex(), "RELAYER_TOPUP_THRESHOLD": "1", "RELAYER_TOPUP_TARGET": "2", "RELAYER_TOPUP_MAX_PER_DAY": "3",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for name, value := range c.settings {
				t.Setenv(name, value)
			}
			r := rollcall(t, "relayer", "--listen", "127.0.0.1:0")
			require.Equal(t, cli.ExitUsage, r.code)
			lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
			require.Contains(t, lines[0], "listening for HTTP")
			require.Contains(t, lines[len(lines)-1], `"msg":"relayer failed"`)
			require.Contains(t, lines[len(lines)-1], c.want)
			require.NotContains(t, r.stderr, c.secret)
		})
	}
}
