package reconciler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
)

const (
	// atOnce is how many transactions of one relayer are asked about concurrently.
	atOnce = 16
	// maxAsking is the number of transactions above which a round takes no more.
	maxAsking = 2000
)

// asking has the transactions that were taken and are being asked about. Each relayer has its own limit, and no round waits for
// the answers: otherwise transactions of a relayer that answers at once would wait for the slow answers of another one.
type asking struct {
	group sync.WaitGroup
	late  atomic.Bool   // relayers are asked about late acceptances
	more  chan struct{} // buffer of one: a relayer of a full page is no longer asked, so that more of its transactions can be taken

	mu        sync.Mutex
	relayers  map[string]bool // URLs of those that are asked
	count     int             // transactions
	notStored []error         // of answers, since the last call of takeErrors
}

func newAsking() *asking { return &asking{more: make(chan struct{}, 1), relayers: map[string]bool{}} }

// urls returns the URLs of the relayers that are being asked. None of their transactions are to be taken.
func (a *asking) urls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.AppendSeq([]string{}, maps.Keys(a.relayers))
}

// full reports whether no more transactions are to be taken.
func (a *asking) full() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count >= maxAsking
}

// takeErrors returns why answers could not be stored, since the last call.
func (a *asking) takeErrors() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := errors.Join(a.notStored...)
	a.notStored = nil
	return err
}

// start calls ask for each transaction, concurrently with the caller. fullPage is whether more of them may be due.
func (a *asking) start(ctx context.Context, due []store.Due, fullPage bool, ask func(context.Context, store.Due) error) {
	of := map[string][]store.Due{}
	for _, d := range due {
		of[d.URL] = append(of[d.URL], d)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for url, all := range of {
		a.relayers[url] = true
		a.count += len(all)
		a.group.Go(func() {
			group, asking := errgroup.WithContext(ctx)
			group.SetLimit(atOnce)
			for _, d := range all {
				group.Go(func() error { return ask(asking, d) })
			}
			a.end(url, len(all), group.Wait())
			if fullPage {
				select {
				case a.more <- struct{}{}:
				default:
				}
			}
		})
	}
}

// startLate calls ask for each late acceptance, concurrently with the caller. late is set until the last one has ended.
func (a *asking) startLate(ctx context.Context, due []store.Late, ask func(context.Context, *store.Late) error) {
	a.late.Store(true)
	a.group.Go(func() {
		defer a.late.Store(false)
		group, asking := errgroup.WithContext(ctx)
		group.SetLimit(atOnce)
		for i := range due {
			group.Go(func() error { return ask(asking, &due[i]) })
		}
		if err := group.Wait(); err != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.notStored = append(a.notStored, err)
		}
	})
}

func (a *asking) end(url string, count int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.relayers, url)
	a.count -= count
	if err != nil {
		a.notStored = append(a.notStored, err)
	}
}
