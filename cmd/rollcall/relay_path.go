package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// relayStoreFlags are where the relay path's transactions and their queue are: the same for all APIs and consumers.
type relayStoreFlags struct {
	DatabaseURL string `env:"DATABASE_URL,RELAY_DATABASE_URL" placeholder:"URL" secret:"" help:"Postgres: postgres://user:password@host:port/database, with the driver's options such as sslmode."`
	URLFile     string `name:"database-url-file" env:"DATABASE_URL_FILE,RELAY_DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the URL."`
	QueueURL    string `env:"QUEUE_URL" default:"postgres" placeholder:"URL" secret:"" help:"Queue between APIs and consumers: postgres (a table of the database), sqs://HOST/ACCOUNT/QUEUE?region=…, or amqps://user:password@host/vhost for RabbitMQ."`
	QueueFile   string `name:"queue-url-file" env:"QUEUE_URL_FILE" placeholder:"FILE" help:"File that holds the queue's URL."`
	Migrate     bool   `env:"RELAY_MIGRATE" default:"true" negatable:"" help:"Bring the database's schema up to date at start. Otherwise \"rollcall migrate\" has to before, or the process ends."`

	// Settings of single roles; 0 for the defaults of the store and the queue.
	silent, lease, drain time.Duration
	concurrency          int
}

func (f *relayStoreFlags) check(p *config.Problems) {
	cli.ReadSecret(p, &f.DatabaseURL, &f.URLFile)
	if f.DatabaseURL == "" && f.URLFile == "" {
		p.Addf(&f.DatabaseURL, "give postgres://user:password@host:port/database", "is missing")
	}
	cli.CheckDatabaseURL(p, &f.DatabaseURL, &f.URLFile)
	if f.QueueFile != "" && f.QueueURL == queue.Postgres {
		f.QueueURL = ""
	}
	cli.ReadSecret(p, &f.QueueURL, &f.QueueFile)
	if err := queue.CheckURL(f.QueueURL); err != nil {
		p.Addf(cli.From(&f.QueueURL, &f.QueueFile), "", "%s", cli.OneLine(err))
	}
}

// relayStore is the relay path's database, and the queue.
type relayStore struct {
	db       *pgxpool.Pool
	queue    *queue.Queue
	webhooks *outbox.Notifier // wakes the APIs, which deliver the clients' webhooks
	store    *store.Store
}

// open connects to the database, waits for it, migrates it if configured, and opens the queue.
func (f *relayStoreFlags) open(ctx context.Context, role string, targets []string, log *slog.Logger, reg prometheus.Registerer, waiting func(error)) (_ *relayStore, err error) {
	parts := []postgres.Migrations{store.Migrations(), queue.Migrations()}
	for i := range parts {
		parts[i].Log, parts[i].Waiting = log, waiting
		if f.Migrate {
			if err := postgres.Migrate(ctx, f.DatabaseURL, parts[i]); err != nil {
				return nil, err
			}
		}
	}
	s := new(relayStore)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.db, err = postgres.Open(ctx, postgres.Config{URL: f.DatabaseURL, ApplicationName: "rollcall " + role, Waiting: waiting}); err != nil {
		return nil, err
	}
	for _, m := range parts {
		if err := postgres.Check(ctx, s.db, m); err != nil { // another version may have migrated it
			return nil, err
		}
	}
	s.queue, err = queue.Open(s.db, queue.Config{
		URL: f.QueueURL, Concurrency: f.concurrency, Lease: f.lease, DrainTimeout: f.drain, Registerer: reg, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	webhooks, err := outbox.New(s.db, store.Webhooks().Table)
	if err != nil {
		return nil, err
	}
	s.webhooks = webhooks.NewNotifier(log.With("component", "webhook"), nil)
	s.store = store.New(s.db, store.Config{
		Enqueue: queue.EnqueueSQL, Silent: f.silent, Targets: targets, WebhooksStored: s.webhooks.Notify, Logger: log,
	})
	return s, nil
}

// claimChain gives the database the chain of a setting, or returns that it has another one; 0 is none.
func claimChain(ctx context.Context, s *store.Store, setting string, id uint64) error {
	if id == 0 {
		return nil
	}
	chain, err := s.ClaimChain(ctx, id)
	if err == nil && chain != id {
		return fmt.Errorf("the transactions of this database are for chain %d, and %s is %d: correct it, or use the database of that chain", chain, setting, id)
	}
	return err
}

// Close closes the queue and then the database.
func (s *relayStore) Close() (err error) {
	if s.queue != nil {
		err = s.queue.Close()
	}
	if s.db != nil {
		s.db.Close()
	}
	return err
}

// relayerKeys are the API keys for relayers, by the ids of their services; that of "" is for all others.
type relayerKeys map[string]string

// parseRelayerKeys reads id:key,id:key; its errors show no key.
func parseRelayerKeys(s string) (relayerKeys, error) {
	keys := relayerKeys{}
	for _, pair := range strings.FieldsFunc(s, func(c rune) bool { return strings.ContainsRune(", \t\r\n", c) }) {
		id, key, ok := strings.Cut(pair, ":")
		if !ok || id == "" || key == "" {
			return nil, errors.New("is not id:key,id:key")
		}
		if keys[id] != "" {
			return nil, errors.New("has two keys for one relayer")
		}
		keys[id] = key
	}
	return keys, nil
}

// key returns the key for a relayer; "" if there is none.
func (k relayerKeys) key(id string) string {
	if key := k[id]; key != "" {
		return key
	}
	return k[""]
}
