package service

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// idempotencyScopes caches the store's identity, and the scope of each caller. The callers are the configured API keys'
// names, so the cache is small.
type idempotencyScopes struct {
	mu       sync.Mutex
	identity uuid.UUID         // zero until it was read
	scopes   map[string]string // of that identity, by caller
}

// refresh reads the identity again, because it changes after a failover of the database. A failure keeps the last one.
func (c *idempotencyScopes) refresh(ctx context.Context, s *store.Store) {
	if identity, err := s.Identity(ctx); err == nil {
		c.set(identity)
	}
}

func (c *idempotencyScopes) set(identity uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if identity != c.identity {
		c.identity, c.scopes = identity, map[string]string{}
	}
}

// of returns a caller's scope and the identity that it belongs to; zero values while that is not known.
func (c *idempotencyScopes) of(chainID uint64, pool, caller string) (scope string, identity uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.identity == (uuid.UUID{}) {
		return "", uuid.UUID{}
	}
	scope, ok := c.scopes[caller]
	if !ok {
		scope = idempotencyScope(c.identity, chainID, pool, caller)
		c.scopes[caller] = scope
	}
	return scope, c.identity
}

// idempotencyScope returns the scope of a caller's idempotency keys. The identity is random and is not published. So the
// scope does not reveal the caller's name, not even to a client that tries out names.
func idempotencyScope(identity uuid.UUID, chainID uint64, pool, caller string) string {
	b := append([]byte{1}, binary.BigEndian.AppendUint64(nil, chainID)...) // 1 is the version of this form
	for _, part := range []string{pool, caller} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	h := hmac.New(sha256.New, identity[:])
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// scopeOf returns a caller's scope and the store's identity; zero values before the pool is registered.
func (p *Service) scopeOf(ctx context.Context, caller string) (string, uuid.UUID, error) {
	if scope, identity := p.scopes.of(p.cfg.Store.ChainID, p.cfg.ID, caller); scope != "" {
		return scope, identity, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DatabaseTimeout)
	defer cancel()
	identity, err := p.cfg.Store.Identity(ctx)
	switch {
	case errors.Is(err, relayer.ErrNotFound):
		return "", identity, nil
	case err != nil:
		return "", identity, unavailable(err)
	}
	p.scopes.set(identity)
	return idempotencyScope(identity, p.cfg.Store.ChainID, p.cfg.ID, caller), identity, nil
}

// IdempotencyScope implements [relayer.Service].
func (p *Service) IdempotencyScope(ctx context.Context, caller string) (string, error) {
	scope, _, err := p.scopeOf(ctx, caller)
	return scope, err
}

// requireScope compares a submission's scope with the caller's. It returns the identity that the store must still have when
// it accepts the submission; zero if none is required.
func (p *Service) requireScope(ctx context.Context, s relayer.Submission) (uuid.UUID, error) {
	if s.Scope == "" {
		return uuid.UUID{}, nil
	}
	scope, identity, err := p.scopeOf(ctx, s.Caller)
	switch {
	case err != nil:
		return identity, err
	case scope == "":
		return identity, fmt.Errorf("%w: the pool is not registered yet", relayer.ErrUnavailable)
	case scope != s.Scope:
		return identity, relayer.ErrOtherScope
	}
	return identity, nil
}
