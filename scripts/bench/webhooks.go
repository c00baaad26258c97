package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// webhookTarget is the process that receives a relayer's webhooks. It reads each, answers 200, and counts.
func webhookTarget(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("webhook-target", flag.ExitOnError)
	listen := flags.String("listen", "", "address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var taken atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", func(_ http.ResponseWriter, req *http.Request) {
		if _, err := io.Copy(io.Discard, req.Body); err == nil {
			taken.Add(1)
		}
	})
	mux.HandleFunc("GET /taken", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, taken.Load()) })
	server := &http.Server{Addr: *listen, Handler: mux}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// webhookProcess is a running webhookTarget.
type webhookProcess struct {
	*process
	dir string
	url string
}

func (s *suite) startWebhookTarget(ctx context.Context) (w *webhookProcess, err error) {
	dir, err := s.freshDir("webhooks")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	w = &webhookProcess{dir: dir, url: "http://" + addrs[0]}
	if w.process, err = self("webhook-target", dir, "webhook-target", "-listen", addrs[0]); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	err = until(ctx, 10*time.Second, func(ctx context.Context) error {
		if err := w.running(); err != nil {
			return err
		}
		_, err := w.taken(ctx)
		return err
	})
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// taken returns how many webhooks have arrived.
func (w *webhookProcess) taken(ctx context.Context) (int, error) {
	body, err := httpGet(ctx, w.url+"/taken")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(body)))
}

func (w *webhookProcess) close() {
	w.kill()
	os.RemoveAll(w.dir)
}

// withWebhooks measures, while do runs, how many webhooks arrive a second, and how many more are waiting at its end.
func (s *suite) withWebhooks(ctx context.Context, r *relayed, do func(context.Context) error) error {
	waiting, err := r.due(ctx)
	if err != nil {
		return err
	}
	taken, err := r.hooks.taken(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	takenAfter, err := r.hooks.taken(ctx)
	if err != nil {
		return err
	}
	waitingAfter, err := r.due(ctx)
	if err != nil {
		return err
	}
	s.sample(deliveredRow, float64(takenAfter-taken)/took.Seconds(), "/s")
	s.sample(backlogRow, float64(waitingAfter-waiting), "")
	return nil
}

// due returns how many webhooks are stored and not delivered.
func (r *relayed) due(ctx context.Context) (n int, err error) {
	return n, r.db.do(ctx, r.db.server.DatabaseURL("relay"), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM relayer_deliveries WHERE state = 'due'").Scan(&n)
	})
}

// settled returns when all posted transactions are final, and their webhooks are delivered.
func (r *relayed) settled(ctx context.Context) error {
	return until(ctx, time.Minute, func(ctx context.Context) error {
		return r.db.do(ctx, r.db.server.DatabaseURL("relay"), func(conn *pgx.Conn) error {
			var open, due int
			err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM relayer_txs WHERE open),
				(SELECT count(*) FROM relayer_deliveries WHERE state = 'due')`).Scan(&open, &due)
			if err == nil && open+due > 0 {
				err = fmt.Errorf("%d transactions are not final, %d webhooks not delivered", open, due)
			}
			return err
		})
	})
}

// wal returns how many bytes the server has written to its log.
func (r *relayed) wal(ctx context.Context) (n float64, err error) {
	return n, r.db.do(ctx, r.db.server.DatabaseURL("relay"), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'").Scan(&n)
	})
}

// syncs returns how often the server has waited for the disk with its log.
func (r *relayed) syncs(ctx context.Context) (n float64, err error) {
	return n, r.db.do(ctx, r.db.server.DatabaseURL("relay"), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT wal_sync FROM pg_stat_wal").Scan(&n)
	})
}

// waitingCount is how many transactions wait for a key while others are posted.
const waitingCount = 10_000

// fillQueue makes transactions wait for the last key. It raises the key's count of pending transactions in the store
// above the relayer's limit, so that the end of earlier ones does not free a slot.
func (r *relayed) fillQueue(ctx context.Context) error {
	full := r.keys[len(r.keys)-1]
	address := strings.ToLower(full.Hex())
	err := r.db.do(ctx, r.db.server.DatabaseURL("relay"), func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, "UPDATE relayer_keys SET pending_count = $1 WHERE address = $2", 2*inFlight, address)
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("the store has no key %s", address)
		}
		return err
	})
	if err != nil {
		return err
	}
	queued := r.posts(false)
	request := r.transfer(address, "")
	queued.request = func(int) []byte { return request }
	if _, err := queued.send(ctx, waitingCount, 0); err != nil {
		return err
	}
	return r.db.do(ctx, r.db.server.DatabaseURL("relay"), func(conn *pgx.Conn) error {
		var n int
		err := conn.QueryRow(ctx, "SELECT count(*) FROM relayer_txs WHERE open AND nonce IS NULL").Scan(&n)
		if err == nil && n != waitingCount {
			err = fmt.Errorf("%d transactions wait for a key, not %d", n, waitingCount)
		}
		return err
	})
}
