package modeltest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

const (
	poolID        = "pool"
	confirmations = 5
	// deepest is how deep the world reorganizes: confirmed blocks are never removed.
	deepest = confirmations - 1
	// patience is the timeout of callers, and of the intake at the database.
	patience = 5 * time.Second
	// slowMachine is the longest wait for a state that no fault prevents. Many trials share two cores, under -race.
	slowMachine = 30 * time.Second
)

// process is a relayer of the pool, without its HTTP API.
type process struct {
	*mortal
	*service.Service
	stop context.CancelFunc // like SIGTERM
	done chan struct{}
}

// faultySigner is a signer behind a gate.
type faultySigner struct {
	*signertest.Fake
	gate gate
}

func (s faultySigner) Sign(ctx context.Context, digest [32]byte) ([65]byte, error) {
	var made [65]byte
	var failed error
	if err := s.gate.pass(stepSign, func() { made, failed = s.Fake.Sign(ctx, digest) }); err != nil {
		return [65]byte{}, err
	}
	return made, failed
}

// start runs a process.
func (tr *trial) start() *process {
	tr.t.Helper()
	ctx, kill := context.WithCancelCause(context.Background())
	ctx, stop := context.WithCancel(ctx)
	tr.mu.Lock()
	name := fmt.Sprintf("p%d", len(tr.processes)+1)
	tr.mu.Unlock()
	m := &mortal{name: name, faults: tr.faults, kill: kill, conns: map[net.Conn]struct{}{}}
	log := slog.New(&recorder{log: tr.log, process: name})

	config, err := pgxpool.ParseConfig(tr.url)
	require.NoError(tr.t, err)
	require.Nil(tr.t, config.ConnConfig.TLSConfig, "what is encrypted can't be read along")
	config.MaxConns = 2 // each costs the server as much as all its statements
	config.ConnConfig.DialFunc, config.ConnConfig.Tracer = m.dial, m
	// The locks of a frozen process are released while it is frozen.
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint((freezeDuration / 3).Milliseconds())
	config.ConnConfig.RuntimeParams["lock_timeout"] = "2000"
	db, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(tr.t, err)

	var signers []signer.Signer
	for _, key := range tr.keys {
		signers = append(signers, faultySigner{signertest.NewFake(key.Signer), m})
	}
	ring, err := signer.New(signers...)
	require.NoError(tr.t, err)
	choice := rand.New(rand.NewPCG(tr.seed, uint64(len(name))))
	nodes := &client{world: tr.world, gate: m, second: func() bool { return tr.world.held && choice.IntN(3) == 0 }}
	store := store.New(db, store.Config{ChainID: tr.world.chainID, Pool: poolID, Targets: []string{"hook"}})
	send := sender.New(sender.Config{ChainID: tr.world.chainID, Ring: ring, Chain: nodes, Store: store, Log: log, Signers: 2, Broadcasters: 2, Pause: time.Millisecond, MaxPause: time.Millisecond})
	p := &process{mortal: m, stop: stop, done: make(chan struct{})}
	p.Service = service.New(service.Config{
		ID: poolID, Store: store, Sender: send, Chain: nodes, Ring: ring, Log: log, Enabled: true, Cap: 3, Queue: 100, DatabaseTimeout: patience,
	})
	soon := 250 * time.Millisecond
	track := tracker.New(tracker.Config{
		Name: name + " " + uuid.NewString(), Store: store, Sender: send, Chain: nodes, Allocation: p.Allocation(), Log: log,
		Confirmations: confirmations, Term: 200 * time.Millisecond, Tend: 50 * time.Millisecond, Abandoned: 100 * time.Millisecond,
		StuckAfter: time.Second, BumpAfter: map[relayer.Speed]time.Duration{
			relayer.Fastest: soon, relayer.Fast: soon, relayer.Average: soon, relayer.SafeLow: soon,
		},
		Events: relayertest.OnRound(nil, func(_ context.Context, head evm.Header) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.followed = head.Hash
		}),
	})
	var parts errgroup.Group
	senders, stopSender := context.WithCancel(context.WithoutCancel(ctx))
	parts.Go(func() error {
		defer stopSender()
		var first errgroup.Group
		first.Go(func() error { return p.Run(context.WithValue(ctx, intakeOf, m)) })
		first.Go(func() error { return track.Run(ctx) })
		return first.Wait()
	})
	parts.Go(func() error { return send.Run(senders) })
	go func() {
		defer close(p.done)
		if err := parts.Wait(); err != nil {
			tr.t.Errorf("%s ended: %v", name, err)
		}
		db.Close()
	}()
	tr.mu.Lock()
	tr.processes = append(tr.processes, p)
	tr.mu.Unlock()
	tr.log.add("%s: begins", name)
	return p
}

// recorder is a log that writes to the history.
type recorder struct {
	log     *history
	process string
	with    []slog.Attr
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *recorder) WithGroup(string) slog.Handler            { return r }

func (r *recorder) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &recorder{log: r.log, process: r.process, with: append(append([]slog.Attr(nil), r.with...), attrs...)}
}

func (r *recorder) Handle(_ context.Context, record slog.Record) error {
	line := r.process + ": " + record.Message
	add := func(a slog.Attr) bool {
		if text := a.Value.String(); text != "" {
			line += " " + a.Key + "=" + text
		}
		return true
	}
	for _, a := range r.with {
		add(a)
	}
	record.Attrs(add)
	r.log.add("%s", line)
	return nil
}
