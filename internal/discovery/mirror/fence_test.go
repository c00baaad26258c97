package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
)

func TestFence_LeaderNotConfirmed_WritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		q := &quorum{leader: 1}
		var book logbook
		w := start(t, mirror.Config{Store: store, Confirm: q.confirms(1), Logger: book.logger()})
		w.Update(entries(mirror.Healthy, "a"), nil)
		settle(2 * time.Second)
		q.lead(2) // no writer of epoch 2 has claimed yet
		settle(200 * time.Millisecond)
		before := len(store.Log())
		w.Update(slices.Concat(entries(mirror.Unhealthy, "a"), entries(mirror.Healthy, "b")), nil)
		settle(time.Minute)
		require.Len(t, store.Log(), before, "no heartbeat either")
		require.ErrorIs(t, w.Status().Err, errNotLeading)
		require.False(t, w.Status().Connected, "readers get nothing new")
		require.Len(t, book.with("level=WARN"), 1)
		q.lead(1)
		settle(time.Second)
		require.Equal(t, []string{"b"}, store.Members(active))
	})
}

func TestFence_Removal_AsksTheQuorumAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		q := &quorum{leader: 1}
		w := start(t, mirror.Config{Store: store, Confirm: q.confirms(1)})
		w.Update(entries(mirror.Healthy, "a"), nil)
		synctest.Wait() // written, with a confirmation that is valid for some time
		require.Equal(t, 1, q.count())
		q.lead(2)
		w.Update(entries(mirror.Healthy, "b"), nil)
		synctest.Wait()
		require.Equal(t, []string{"a", "b"}, store.Members(active))
		w.Update(entries(mirror.Unhealthy, "a"), nil)
		settle(time.Minute)
		require.Equal(t, []string{"a", "b"}, store.Members(active))
	})
}

// A leader is paused between its last confirmation and its write. In the meantime it is deposed, the new leader
// writes, and Redis fails over to a copy from before that. The deadline alone must refuse the write.
func TestFence_LeaderPausedDuringWrite_IsRefused(t *testing.T) {
	for name, skew := range map[string]time.Duration{"SameClock": 0, "RedisAhead": time.Hour, "RedisBehind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := mirrortest.NewMemory()
				store.SetSkew(skew)
				q := &quorum{leader: 1}
				old := start(t, mirror.Config{Store: store, Confirm: q.confirms(1)})
				old.Update(entries(mirror.Healthy, "a", "b"), nil)
				settle(3 * time.Second)
				copied := store.Snapshot()

				asleep, awake := make(chan struct{}), make(chan struct{})
				store.SetHook(func(_ context.Context, op mirror.Op, do func()) error {
					if op == mirror.OpChange {
						close(asleep)
						<-awake
					}
					do()
					return nil
				})
				old.Update(entries(mirror.Unhealthy, "a"), nil)
				<-asleep
				store.SetHook(nil)
				q.lead(2)
				next := start(t, mirror.Config{Store: store, Epoch: 2, Confirm: q.confirms(2)})
				next.Update(entries(mirror.Healthy, "a", "b", "c"), nil)
				settle(250 * time.Millisecond)
				require.NoError(t, next.stop())
				store.Restore(copied)
				writes := len(store.Log())
				close(awake)
				settle(time.Minute)
				require.Len(t, store.Log(), writes)
				require.Equal(t, []string{"a", "b"}, store.Members(active))
				require.ErrorIs(t, old.Status().Err, errNotLeading)

				// Without the deposition, the write must be made in time.
				q.lead(1)
				settle(time.Second)
				require.Equal(t, []string{"b"}, store.Members(active))
			})
		})
	}
}

func TestFence_RedisClockJumps_WritesContinue(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := mirrortest.NewMemory()
			w := start(t, mirror.Config{Store: store})
			w.Update(entries(mirror.Healthy, "a"), nil)
			settle(3 * time.Second)
			store.SetSkew(jump)
			w.Update(entries(mirror.Unhealthy, "a"), nil)
			settle(50 * time.Millisecond)
			require.Empty(t, store.Members(active), "a refusal brings the new time along")
		})
	}
}

// A Redis slower than the lease must get no writes; a faster one must get them.
func TestFence_RedisSlowerThanTheLease_RefusesWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		var mu sync.Mutex
		delay := 40 * time.Millisecond
		store.SetHook(func(_ context.Context, _ mirror.Op, do func()) error {
			mu.Lock()
			there := delay
			mu.Unlock()
			pass(there)
			do()
			pass(there)
			return nil
		})
		var book logbook
		w := start(t, mirror.Config{Store: store, Logger: book.logger()})
		w.Update(entries(mirror.Healthy, "a"), nil)
		settle(3 * time.Second)
		require.Equal(t, []string{"a"}, store.Members(active))
		mu.Lock()
		delay = 250 * time.Millisecond
		mu.Unlock()
		settle(2 * time.Second)
		require.True(t, w.Status().Connected, "two heartbeats are no trouble yet")
		settle(3 * time.Second)
		require.False(t, w.Status().Connected, "three are, although Redis answers each time")
		settle(15 * time.Second)
		require.ErrorContains(t, w.Status().Err, "expired")
		require.Len(t, book.with("level=WARN"), 1)
		settle(10 * time.Minute)
		warnings := len(book.with("level=WARN"))
		require.GreaterOrEqual(t, warnings, 10, "the warning is repeated")
		require.LessOrEqual(t, warnings, 11, "and not each time")
		require.Empty(t, book.with("pass their fence again"))
		mu.Lock()
		delay = 0
		mu.Unlock()
		settle(time.Second)
		require.NoError(t, w.Status().Err)
		require.True(t, w.Status().Connected)
		require.Len(t, book.with("pass their fence again"), 1)
	})
}

// A confirmation must not be used after the lease, counted from the request.
func TestFence_QuorumSlow_LeaseCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		var mu sync.Mutex
		delay := 150 * time.Millisecond
		w := start(t, mirror.Config{Store: store, Confirm: func(context.Context) error {
			mu.Lock()
			d := delay
			mu.Unlock()
			pass(d) // ignores the context
			return nil
		}})
		w.Update(entries(mirror.Healthy, "a"), nil)
		settle(3 * time.Second)
		require.Equal(t, []string{"a"}, store.Members(active))
		mu.Lock()
		delay = 200 * time.Millisecond
		mu.Unlock()
		settle(time.Second)
		before := len(store.Log())
		w.Update(entries(mirror.Healthy, "b"), nil)
		settle(10 * time.Second)
		require.Len(t, store.Log(), before)
		require.ErrorContains(t, w.Status().Err, "after the lease")
		require.False(t, w.Status().Connected)
	})
}

func TestClaim_OtherLeadership_IsRefused(t *testing.T) {
	held := func(cluster, epoch, seq, leader string) *mirrortest.Memory {
		store := mirrortest.NewMemory()
		store.HSet("relayer:meta", "cluster", cluster, "epoch", epoch, "seq", seq, "leader", leader, "kinds", "relayer")
		store.SAdd(active, "a")
		return store
	}
	for name, test := range map[string]struct {
		store *mirrortest.Memory
		want  string
		check func(error) bool
	}{
		"HigherEpoch": {held("c", "9", "3", "node-9"), "epoch 9", func(err error) bool {
			higher, ok := errors.AsType[*mirror.HigherEpochError](err)
			return ok && higher.Seen == 9
		}},
		"SameEpochOfAnotherNode": {held("c", "5", "3", "node-x"), "epoch 5", func(err error) bool {
			higher, ok := errors.AsType[*mirror.HigherEpochError](err)
			return ok && higher.Seen == 5
		}},
		"ForeignCluster": {held("d", "2", "3", "node-x"), "rollcall mirror take-over", func(err error) bool {
			foreign, ok := errors.AsType[*mirror.ForeignClusterError](err)
			return ok && foreign.Cluster == "d" && foreign.Epoch == 2
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, mirror.Config{Store: test.store, Epoch: 5})
				w.Update(nil, nil)
				err := w.wait()
				require.True(t, test.check(err), "%v", err)
				require.ErrorContains(t, err, test.want)
				require.ErrorIs(t, w.Status().Err, err)
				require.Empty(t, test.store.Log())
				require.Equal(t, []string{"a"}, test.store.Members(active))
				<-w.FirstClaim()
			})
		})
	}
}

func TestFence_LeaderDeposed_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		old := start(t, mirror.Config{Store: store, Epoch: 1}) // its quorum confirms everything
		old.Update(entries(mirror.Healthy, "a"), nil)
		settle(1500 * time.Millisecond)
		next := start(t, mirror.Config{Store: store, Epoch: 2})
		next.Update(entries(mirror.Unknown, "a"), nil)
		<-next.FirstClaim()
		synctest.Wait()
		old.Update(entries(mirror.Unhealthy, "a"), nil)
		higher, ok := errors.AsType[*mirror.HigherEpochError](old.wait())
		require.True(t, ok)
		require.EqualValues(t, 2, higher.Seen)
		require.Equal(t, []string{"a"}, store.Members(active))
	})
}

// A director restarted within its epoch must continue the previous one's state, and that one's writes in flight must
// count as older.
func TestClaim_SecondWriterOfAnEpoch_Continues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mirrortest.NewMemory()
		first := start(t, mirror.Config{Store: store})
		first.Update(entries(mirror.Healthy, "a"), nil)
		settle(3 * time.Second)
		var late func()
		store.SetHook(func(_ context.Context, op mirror.Op, do func()) error {
			if op == mirror.OpChange {
				late = do
				return errAway
			}
			do()
			return nil
		})
		first.Update(entries(mirror.Unhealthy, "a"), nil)
		synctest.Wait()
		store.SetHook(nil)
		second := start(t, mirror.Config{Store: store})
		second.Update(entries(mirror.Healthy, "a"), nil)
		synctest.Wait()
		late()
		require.ErrorIs(t, first.wait(), mirror.ErrSuperseded)
		settle(3 * time.Second)
		require.Equal(t, []string{"a"}, store.Members(active))
		require.Greater(t, second.Status().Seq, uint64(1<<20))
		require.NoError(t, second.stop())
	})
}

// link is one node's unreliable connection to the store.
type link struct {
	*mirrortest.Memory
	mu   sync.Mutex
	rand *rand.Rand
	bad  float64 // probability of a fault
}

func (l *link) chance() (trouble bool, kind int, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rand.Float64() < l.bad, l.rand.IntN(5), time.Duration(l.rand.IntN(600)) * time.Millisecond
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad = 0
}

func (l *link) Read(ctx context.Context, kinds []string) (mirror.View, error) {
	trouble, kind, delay := l.chance()
	if trouble && kind == 0 {
		return mirror.View{}, errAway
	}
	if trouble {
		pass(delay)
	}
	return l.Memory.Read(ctx, kinds)
}

func (l *link) Write(ctx context.Context, w mirror.Write) (mirror.Reply, error) {
	trouble, kind, delay := l.chance()
	if !trouble {
		return l.Memory.Write(ctx, w)
	}
	do := func() (mirror.Reply, error) { return l.Memory.Write(context.WithoutCancel(ctx), w) }
	switch kind {
	case 0: // not sent
		return mirror.Reply{}, errAway
	case 1: // the answer is lost
		_, _ = do()
		return mirror.Reply{}, errAway
	case 2: // delayed, after the writer has stopped waiting
		time.AfterFunc(delay, func() { _, _ = do() })
		return mirror.Reply{}, errAway
	case 3: // repeated by a proxy
		_, _ = do()
		time.AfterFunc(delay, func() { _, _ = do() })
		return do()
	default: // slow in one direction
		pass(delay)
		return do()
	}
}

// Leaders change while links fail in every way, and Redis is emptied and replaced by old copies. Isolated leaders find
// all services down at the moment of their deposition. No write may remove a service that is always up, and in the end
// Redis must hold the true state.
func TestWriter_RandomFaults_RemovesNoHealthyService(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			store := mirrortest.NewMemory()
			q := &quorum{}
			steady := []string{"s0", "s1", "s2"}
			moody := []string{"m0", "m1", "m2", "m3"}
			all := slices.Concat(steady, moody)
			up := map[string]bool{"m0": true, "m1": true}
			truth := func(id string) mirror.Status {
				if up[id] || slices.Contains(steady, id) {
					return mirror.Healthy
				}
				return mirror.Unhealthy
			}
			var links []*link
			var leader *running
			var copied map[string]any
			for epoch := uint64(1); epoch <= 6; epoch++ {
				q.lead(epoch)
				if leader != nil {
					leader.Update(entries(mirror.Unhealthy, all...), nil) // cut off, and not aware of it yet
				}
				l := &link{Memory: store, rand: rand.New(rand.NewPCG(seed, epoch)), bad: rnd.Float64() * 0.4}
				links = append(links, l)
				leader = start(t, mirror.Config{Store: l, Epoch: epoch, Confirm: q.confirms(epoch)})
				leader.Update(entries(mirror.Unknown, all...), nil)
				pass(time.Duration(rnd.IntN(300)) * time.Millisecond)
				for _, id := range all {
					leader.Update(entries(truth(id), id), nil)
				}
				for range 30 {
					pass(time.Duration(rnd.IntN(250)) * time.Millisecond)
					id := moody[rnd.IntN(len(moody))]
					up[id] = !up[id]
					leader.Update(entries(truth(id), id), nil)
					switch rnd.IntN(40) {
					case 0:
						copied = store.Snapshot()
					case 1:
						if copied != nil {
							store.Restore(copied)
						}
					case 2:
						store.Flush()
					}
				}
			}
			for _, l := range links {
				l.heal()
			}
			settle(15 * time.Second)

			var want []string
			for _, id := range all {
				if truth(id) == mirror.Healthy {
					want = append(want, id)
				}
				require.Equal(t, string(truth(id)), store.Hash("relayer:status:svc:" + id)["status"], "seed %d", seed)
			}
			require.ElementsMatch(t, want, store.Members(active), "seed %d", seed)
			for i, a := range store.Log() {
				for _, id := range steady {
					if slices.Contains(a.Before["relayer"], id) {
						require.Contains(t, a.After["relayer"], id, fmt.Sprintf("seed %d, write %d: %+v", seed, i, a.Write))
					}
				}
			}
		})
	}
}
