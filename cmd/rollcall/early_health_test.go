package main

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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
