package tracker

import (
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

const (
	// resendInterval is the time between two sends of attempts of one key that nodes refuse.
	resendInterval = time.Second
	// maxEarlyWait bounds how long a key's pauses count although the reason of a refusal may have passed.
	maxEarlyWait = 30 * time.Second
)

// pace limits the sends of one key's refused attempts. Nodes that refuse one of them mostly refuse the others too, and the same
// bytes again.
type pace struct {
	next time.Time // refused attempts are not sent until then

	early   bool          // the reason of a refusal may have passed: the next send ignores the attempts' pauses
	earlyAt time.Time     // not before then
	wait    time.Duration // between the last early send, of which nothing was accepted, and earlyAt
}

// ready reports whether a refused attempt may be sent.
func (p *pace) ready(now time.Time) bool { return !now.Before(p.next) }

// ignoresPauses reports whether refused attempts may be sent before their pauses are over.
func (p *pace) ignoresPauses(now time.Time) bool {
	return p.early && p.ready(now) && !now.Before(p.earlyAt)
}

// sentEarly records a send that ignored the pauses. If nothing was accepted, the next one waits for twice as long.
func (p *pace) sentEarly(now time.Time, accepted bool) {
	if accepted {
		p.wait, p.earlyAt = 0, time.Time{}
		return
	}
	p.wait = min(max(2*p.wait, resendInterval), maxEarlyWait)
	p.earlyAt = now.Add(p.wait)
}

// paces are the paces of keys.
type paces map[common.Address]*pace

func (p paces) of(key common.Address) *pace {
	if p[key] == nil {
		p[key] = new(pace)
	}
	return p[key]
}

// isRefused reports whether a node refused an attempt when it was last sent. After a failure to reach one, or to get its answer,
// nothing is known about the attempt. A limit of the rate is about the endpoint.
func isRefused(a *relayer.Attempt) bool {
	switch a.LastError {
	case "", evm.Unknown.String(), evm.NotSent.String(), evm.RateLimited.String():
		return false
	}
	return true
}

// resends are the attempts of a round that are due to be sent again. Those that no node refused are sent together, in the
// first batch. Of the refused ones that batch has the lowest of each key, as a probe. Each batch that nodes accept completely
// doubles how many follow at once, so that a backlog leaves soon after the reason of the refusals has passed.
type resends struct {
	paces paces
	left  []*relayer.Attempt     // each key's lowest nonce first
	quota map[common.Address]int // how many refused attempts of a key the next batch may have
	// accepted are the keys of which a node accepted an attempt, failed those of which one was not accepted.
	accepted, failed map[common.Address]bool
}

func newResends(paces paces, due []*relayer.Attempt, now time.Time) *resends {
	s := &resends{
		paces: paces, left: slices.Clone(due), quota: map[common.Address]int{},
		accepted: map[common.Address]bool{}, failed: map[common.Address]bool{},
	}
	for _, a := range due {
		if s.paces.of(a.From).ready(now) {
			s.quota[a.From] = 1
		}
	}
	return s
}

// batch returns the attempts to send next; none if the others have to wait.
func (s *resends) batch() []*relayer.Attempt {
	var batch []*relayer.Attempt
	taken := map[common.Address]int{}
	s.left = slices.DeleteFunc(s.left, func(a *relayer.Attempt) bool {
		if isRefused(a) {
			if taken[a.From] >= s.quota[a.From] {
				return false
			}
			taken[a.From]++
		}
		batch = append(batch, a)
		return true
	})
	return batch
}

// sent records the results of a batch.
func (s *resends) sent(batch []*relayer.Attempt, results []evm.Result, now time.Time) {
	for i, a := range batch {
		if o := results[i].Outcome; o.Done() || o == evm.NonceTooLow { // mined, by these bytes or others
			s.accepted[a.From] = true
			continue
		}
		s.failed[a.From] = true
	}
	for _, a := range batch {
		if s.failed[a.From] {
			s.quota[a.From] = 0
			s.paces.of(a.From).next = now.Add(resendInterval)
		}
	}
	for key, n := range s.quota {
		s.quota[key] = 2 * n
	}
}
