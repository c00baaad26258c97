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
func (i *idempotencyScopes) refresh(ctx context.Context, s *store.Store) {
	if identity, err := s.Identity(ctx); err == nil {
		i.set(identity)
	}
}

func (i *idempotencyScopes) set(identity uuid.UUID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if identity != i.identity {
		i.identity, i.scopes = identity, map[string]string{}
	}
}

// of returns a caller's scope and the identity that it belongs to; zero values while that is not known.
func (i *idempotencyScopes) of(chainID uint64, pool, caller string) (scope string, identity uuid.UUID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.identity == (uuid.UUID{}) {
		return "", uuid.UUID{}
	}
	scope, ok := i.scopes[caller]
	if !ok {
		scope = idempotencyScope(i.identity, chainID, pool, caller)
		i.scopes[caller] = scope
	}
	return scope, i.identity
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
func (s *Service) scopeOf(ctx context.Context, caller string) (string, uuid.UUID, error) {
	if scope, identity := s.scopes.of(s.cfg.Store.ChainID, s.cfg.ID, caller); scope != "" {
		return scope, identity, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DatabaseTimeout)
	defer cancel()
	identity, err := s.cfg.Store.Identity(ctx)
	switch {
	case errors.Is(err, relayer.ErrNotFound):
		return "", identity, nil
	case err != nil:
		return "", identity, unavailable(err)
	}
	s.scopes.set(identity)
	return idempotencyScope(identity, s.cfg.Store.ChainID, s.cfg.ID, caller), identity, nil
}

// IdempotencyScope implements [relayer.Service].
func (s *Service) IdempotencyScope(ctx context.Context, caller string) (string, error) {
	scope, _, err := s.scopeOf(ctx, caller)
	return scope, err
}

// requireScope compares a submission's scope with the caller's. It returns the identity that the store must still have when
// it accepts the submission; zero if none is required.
func (s *Service) requireScope(ctx context.Context, in relayer.Submission) (uuid.UUID, error) {
	if in.Scope == "" {
		return uuid.UUID{}, nil
	}
	scope, identity, err := s.scopeOf(ctx, in.Caller)
	switch {
	case err != nil:
		return identity, err
	case scope == "":
		return identity, fmt.Errorf("%w: the pool is not registered yet", relayer.ErrUnavailable)
	case scope != in.Scope:
		return identity, relayer.ErrOtherScope
	}
	return identity, nil
}
