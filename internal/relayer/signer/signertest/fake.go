package signertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

// Fake signs with the signer inside like a remote signer: it has hooks before and after, and package signer verifies
// its signatures. It is safe for concurrent use; the hooks run on the caller's goroutine.
type Fake struct {
	signer signer.Signer
	signed atomic.Int64

	mu     sync.Mutex
	before func(ctx context.Context, digest [32]byte) error
	after  func(signature [65]byte) ([65]byte, error)
}

// NewFake returns a Fake without hooks.
func NewFake(signer signer.Signer) *Fake { return &Fake{signer: signer} }

// Faked returns a Fake for the first key of a ring, and a ring with only that Fake.
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

// Before sets a hook that is called before each signature; Sign returns its error. Nil removes the hook.
func (f *Fake) Before(hook func(ctx context.Context, digest [32]byte) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = hook
}

// After sets a hook that is called with each signature; Sign returns its result. Nil removes the hook.
func (f *Fake) After(hook func(signature [65]byte) ([65]byte, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = hook
}

// Fail makes every signature fail.
func (f *Fake) Fail(err error) {
	f.Before(func(context.Context, [32]byte) error { return err })
}

// Block holds each signature until its context ends or release is called, once. Each arriving digest is sent on
// arrived, as long as the test receives. It replaces the hook of Before.
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

// Signed returns the number of signatures made.
func (f *Fake) Signed() int { return int(f.signed.Load()) }

// Address returns the address of the signer inside.
func (f *Fake) Address() common.Address { return f.signer.Address() }

// Sign calls the hooks and the signer inside.
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
