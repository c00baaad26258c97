package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Service accepts transactions. It is safe for concurrent use.
type Service struct {
	cfg        Config
	allocation store.AllocationLimits
	requests   chan *submitRequest
	turn       sync.Mutex // of the intake that may take the keys' locks
	stopped    chan struct{}
	health     atomic.Pointer[relayer.Health]
	senders    senderChecks
	scopes     idempotencyScopes

	registered bool // whether the keys that the store had are registered; used only by the registering goroutine
}

// New returns a Service; Run runs it.
func New(cfg Config) *Service {
	cfg.Group = cmp.Or(cfg.Group, 256)
	cfg.MaxData = cmp.Or(cfg.MaxData, 127<<10)
	cfg.MaxNonceJump = cmp.Or(cfg.MaxNonceJump, 64)
	cfg.RoundsWithin = cmp.Or(cfg.RoundsWithin, 20*time.Second)
	cfg.DatabaseTimeout = cmp.Or(cfg.DatabaseTimeout, 10*time.Second)
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	cfg.Metrics.enabled.Set(float(cfg.Enabled))
	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}
	cfg.Store.RequireComparison()
	return &Service{
		cfg: cfg, requests: make(chan *submitRequest), stopped: make(chan struct{}),
		allocation: cfg.Allocation(),
	}
}

// Run accepts requests until ctx ends, and returns nil when the outcome of every started group is decided. It may be called
// once.
func (s *Service) Run(ctx context.Context) error {
	defer close(s.stopped)
	var running errgroup.Group
	for range intakes {
		running.Go(func() error { s.batcher(ctx); return nil })
	}
	running.Go(func() error { s.healthLoop(ctx); return nil })
	running.Go(func() error { s.register(ctx); return nil })
	return running.Wait()
}

// Allocation returns the limits under which nonces are given out.
func (s *Service) Allocation() store.AllocationLimits { return s.allocation }

// target returns the key that an id names; zero for the pool.
func (s *Service) target(id string) (common.Address, error) {
	if id == s.cfg.ID {
		return common.Address{}, nil
	}
	if !common.IsHexAddress(id) {
		return common.Address{}, fmt.Errorf("relayer %q: %w", id, relayer.ErrNotFound)
	}
	address := common.HexToAddress(id)
	if !slices.Contains(s.allocation.Held, address) {
		return common.Address{}, fmt.Errorf("relayer %q: %w", id, relayer.ErrNotFound)
	}
	return address, nil
}
