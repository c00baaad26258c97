package raftstore_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

func TestHCLog_Messages_AreWrittenToSlog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger := raftstore.NewHCLog(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	logger.Trace("dropped")
	logger.Debug("below the level")
	logger.Named("raft").With("peer", raft.ServerAddress("node-2:7400")).
		Warn("heartbeat failed", "error", errors.New("refused"), "state", raft.Leader, "share", hclog.Fmt("%d%%", 10))
	logger.Error("no more to say")
	logger.StandardLogger(nil).Print("from elsewhere")
	require.Equal(t, `{"level":"WARN","msg":"heartbeat failed","peer":"node-2:7400","err":"refused","state":"Leader","share":"10%"}
{"level":"ERROR","msg":"no more to say"}
{"level":"INFO","msg":"from elsewhere"}
`, out.String())
	require.Equal(t, hclog.Info, logger.GetLevel())
	require.Equal(t, "raft.net", logger.Named("raft").Named("net").Name())
	require.Equal(t, []any{"a", 1, "b", 2}, logger.With("a", 1).With("b", 2).ImpliedArgs())
}
