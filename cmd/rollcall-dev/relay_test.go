package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
)

const (
	// maxLag is how long the API's answer may differ from the row, usualLag bounds the median of these times, and maxAge is how old an
	// unfinished transaction may be. An answer may be a second old, and a transaction a minute; a busy machine needs more.
	maxLag   = 10 * time.Second
	usualLag = 4 * time.Second
	maxAge   = 5 * time.Minute
)

// relayRow is the row of a transaction. age is the time from its creation to now, or to its end.
type relayRow struct {
	status string
	open   bool
	age    time.Duration
}

// A consumer, a relayer and the leader die while transactions are posted, and stay dead. Every transaction is confirmed, and the APIs
// never answer an old status for long.
func TestDev_ProcessesKilledWhilePosting_EveryStatusFollowsTheRow(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "dev")
	d := startDev(t, data)
	d.says(t, "Ctrl-C stops everything")
	info, err := devinfo.ReadInfo(data)
	require.NoError(t, err)
	db, err := pgx.Connect(t.Context(), info.DatabaseURL)
	require.NoError(t, err)
	defer db.Close(context.WithoutCancel(t.Context()))

	const n = 60
	kills := map[int]string{10: "consumer-1", 25: "oz-relayer-1", 40: "leader"}
	for i := range n {
		post(t, info.APIs[i%len(info.APIs)], i)
		if member, ok := kills[i]; ok {
			succeed(t, "kill", member, "--data", data)
		}
	}
	var lags []time.Duration
	differs := map[string]time.Time{} // since when the answer about a transaction differs
	for unfinished := n; unfinished > 0; {
		before := relayRows(t, db)
		require.Len(t, before, n)
		answers := map[string]string{}
		i := 0
		for id := range before {
			answers[id] = answerOf(t, info.APIs[i%len(info.APIs)], id)
			i++
		}
		after := relayRows(t, db)
		unfinished = 0
		for id, answer := range answers {
			row := after[id]
			require.Less(t, row.age, maxAge, "%s is %s", id, row.status)
			switch {
			case answer == row.status || answer == before[id].status:
				if !differs[id].IsZero() {
					lags = append(lags, time.Since(differs[id]))
				}
				delete(differs, id)
			case differs[id].IsZero():
				differs[id] = time.Now()
			default:
				require.Less(t, time.Since(differs[id]), maxLag, "%s is %s, and the API answers %s", id, row.status, answer)
			}
			if row.open || answer != row.status {
				unfinished++
			} else {
				require.Equal(t, "confirmed", answer, id)
			}
		}
	}
	var oldest time.Duration
	for _, row := range relayRows(t, db) {
		oldest = max(oldest, row.age)
	}
	slices.Sort(lags)
	if n := len(lags); n > 0 { // a machine may be so busy that each answer is as new as the rows around it
		require.Less(t, lags[n/2], usualLag)
		t.Logf("%d answers differed from the row, for %v in the median and %v at most", n, lags[n/2], lags[n-1])
	}
	t.Logf("the slowest transaction took %v", oldest)
	d.interrupt(t)
}

// post posts a transaction until it is accepted. A repetition is the same one.
func post(t *testing.T, api devinfo.API, i int) {
	t.Helper()
	body := fmt.Sprintf(`{"transactionId": "tx-%d", "to": "0x00000000000000000000000000000000000000aa", "value": "%d"}`, i, i)
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL+"/api/v1/relay/direct", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("x-api-key", api.APIKey)
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusAccepted
	}, 5*time.Minute, 50*time.Millisecond)
}

// answerOf returns the status that an API answers.
func answerOf(t *testing.T, api devinfo.API, id string) string {
	t.Helper()
	var status string
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL+"/api/v1/relay/status/"+id, nil)
		require.NoError(t, err)
		req.Header.Set("x-api-key", api.APIKey)
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		var body struct{ Status string }
		if res.StatusCode != http.StatusOK || json.NewDecoder(res.Body).Decode(&body) != nil {
			return false
		}
		status = body.Status
		return true
	}, 5*time.Minute, 50*time.Millisecond, id)
	return status
}

// relayRows returns the rows of the relay path's transactions, by the client's ids.
func relayRows(t *testing.T, db *pgx.Conn) map[string]relayRow {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT client_id, status, open, CASE WHEN open THEN clock_timestamp() ELSE updated_at END - created_at FROM relay_transactions`)
	require.NoError(t, err)
	all := map[string]relayRow{}
	var id string
	var row relayRow
	_, err = pgx.ForEachRow(rows, []any{&id, &row.status, &row.open, &row.age}, func() error { all[id] = row; return nil })
	require.NoError(t, err)
	return all
}
