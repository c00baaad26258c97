package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// resync returns `rollcall keys resync` with arguments, run like an operator does.
func (sc *scene) resync(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, *product, append([]string{"keys", "resync", "--output", "json", "--timeout", "30s"}, args...)...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + sc.t.TempDir(), "DATABASE_URL=" + sc.postgres.URL(), "RELAYER_POOL_ID=" + poolID,
		fmt.Sprintf("RELAYER_CHAIN_ID=%d", testchain.ChainID), "RELAYER_RPC_URLS=" + sc.node.URL(),
	}
	cmd.SysProcAttr = dieWithParent()
	return cmd
}

// takeBack runs `rollcall keys resync --reorganized` to its end, and returns how many transactions it took back.
func (sc *scene) takeBack() int {
	sc.t.Helper()
	ctx, cancel := context.WithTimeout(sc.t.Context(), patience)
	defer cancel()
	var answer struct{ TakenBack int }
	sc.output(sc.resync(ctx, "--reorganized", "--yes"), &answer)
	return answer.TakenBack
}

// output runs a command that must succeed, and parses its JSON output.
func (sc *scene) output(cmd *exec.Cmd, answer any) {
	sc.t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(sc.t, err, "%s%s", out, &stderr)
	require.NoError(sc.t, json.Unmarshal(out, answer), "%s", out)
}

// interrupt kills `rollcall keys resync --reorganized` half-way: it has taken back transactions of a key, and waits for
// the locked row of the last one. The anchor has not moved then, so relayers still send nothing.
func (sc *scene) interrupt() (taken int) {
	sc.t.Helper()
	t, v := sc.t, sc.truth()
	number, hash := v.anchor()
	var began time.Time
	require.NoError(t, v.db.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&began))
	lock, err := v.db.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, lock.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = lock.Exec(t.Context(), `SELECT FROM relayer_keys WHERE address = (SELECT max(address) FROM relayer_keys) FOR UPDATE`)
	require.NoError(t, err)
	ctx, kill := context.WithTimeout(t.Context(), patience)
	defer kill()
	cmd := sc.resync(ctx, "--reorganized", "--yes")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	eventually(t, patience, func() bool {
		var waits bool
		err := v.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'rollcall operator' AND wait_event_type = 'Lock'),
			(SELECT count(*) FROM relayer_txs WHERE taken_back_at > $1)`, began).Scan(&waits, &taken)
		return err == nil && waits
	}, "the command does not come to the last key")
	require.NoError(t, cmd.Process.Kill())
	exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	require.True(t, ok && !exit.Exited(), "the command ended by itself: %s", &stderr)
	require.NotZero(t, taken, "the command was not half-way")
	now, is := v.anchor()
	require.Equal(t, fmt.Sprint(number, hash), fmt.Sprint(now, is), "a command that has not taken back everything has moved the anchor")
	return taken
}

// refuse waits until all relayers send nothing, and their /health reports one of the reasons.
func (sc *scene) refuse(reasons ...string) {
	sc.t.Helper()
	for _, m := range sc.fleet {
		eventually(sc.t, patience, func() bool {
			if m.url() == "" {
				return false
			}
			code, body := health(sc.t, m.url())
			return code == http.StatusServiceUnavailable && slices.ContainsFunc(reasons, func(why string) bool { return strings.Contains(body, why) })
		}, "%s does not say that %s", m.name, strings.Join(reasons, ", or "))
	}
}
