package signertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

// Fake signs like the signer within, as something remote would: with hooks before and after, and not trusted by package
// keyring. It is safe for concurrent use; the hooks run on the caller's goroutine.
type Fake struct {
	signer signer.Signer
	signed atomic.Int64

	mu     sync.Mutex
	before func(ctx context.Context, digest [32]byte) error
	after  func(signature [65]byte) ([65]byte, error)
}

// NewFake has no hooks yet.
func NewFake(signer signer.Signer) *Fake { return &Fake{signer: signer} }

// Faked is a ring of a ring's first key alone, which the Fake signs for.
func Faked(t testing.TB, r *signer.Ring) (*Fake, *signer.Ring) {
	t.Helper()
	local, _ := r.Signer(r.Addresses()[0])
	fake := NewFake(local)
	faked, err := signer.New(fake)
	if err != nil {
		t.Fatal(err)
	}
	return fake, faked
}

// Before has hook called before each signature; its error is Sign's. Nil calls nothing.
func (f *Fake) Before(hook func(ctx context.Context, digest [32]byte) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// After has hook called with each signature; what it returns is what Sign does. Nil calls nothing.
func (f *Fake) After(hook func(signature [65]byte) ([65]byte, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = hook
}

// Fail has every signature fail.
func (f *Fake) Fail(err error) {
	f.Before(func(context.Context, [32]byte) error { return err })
}

// Block holds signatures, each until its context ends or release is called, once. Each that arrives is told of on
// arrived, as long as somebody listens. It replaces the hook before.
func (f *Fake) Block() (arrived <-chan [32]byte, release func()) {
	arrivals, released := make(chan [32]byte), make(chan struct{})
	f.Before(func(ctx context.Context, digest [32]byte) error {
		select {
		case arrivals <- digest:
		case <-released:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	return arrivals, sync.OnceFunc(func() { close(released) })
}

// Signed is how many signatures it has made.
func (f *Fake) Signed() int { return int(f.signed.Load()) }

// Address is that of the signer within.
func (f *Fake) Address() common.Address { return f.signer.Address() }

// Sign runs the hooks around the signer within.
func (f *Fake) Sign(ctx context.Context, digest [32]byte) ([65]byte, error) {
	f.mu.Lock()
	before, after := f.before, f.after
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, digest); err != nil {
			return [65]byte{}, err
		}
	}
	signature, err := f.signer.Sign(ctx, digest)
	if err != nil {
		return [65]byte{}, err
	}
	f.signed.Add(1)
	if after != nil {
		return after(signature)
	}
	return signature, nil
}
