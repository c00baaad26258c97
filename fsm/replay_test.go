package fsm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// generator generates random logs: few ids and owners, so that they collide, and mostly valid fences.
type generator struct {
	*rand.Rand
	index, term uint64
	seq         map[Owner]uint64
	incarnation map[Owner]uint64

	imports int    // begun so far
	parts   uint32 // of the last import
}

func newGenerator(seed uint64) *generator {
	return &generator{
		Rand: rand.New(rand.NewPCG(seed, 0)), term: 1,
		seq: make(map[Owner]uint64), incarnation: make(map[Owner]uint64),
	}
}

var generatedOwners = []Owner{gateway("edge-1"), gateway("edge-2"), gateway("edge-3"), Static, Operator}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// log returns the next entry for a directory in the epoch.
func (g *generator) log(epoch uint64) *raft.Log {
	g.index += 1 + uint64(g.IntN(2)) // Raft's own entries are in between
	if g.chance(5) {
		g.term += uint64(g.IntN(4))
	}
	l := &raft.Log{Index: g.index, Term: g.term}
	if g.chance(3) {
		l.Type = raft.LogConfiguration
		return l
	}
	var ops []*rollcallv1.Operation
	for range 1 + max(0, g.IntN(6)-3) {
		ops = append(ops, g.operation(epoch))
	}
	l.Data = encode(ops...)
	return l
}

func (g *generator) operation(epoch uint64) *rollcallv1.Operation {
	switch n := g.IntN(100); {
	case n < 5:
		return opEstablish(fmt.Sprintf("n-%d", g.IntN(3)), g.Uint64N(epoch+5))
	case n < 20:
		return g.importOperation(epoch)
	case n < 80:
		op := &rollcallv1.RegisterOperation{Fence: g.fence(epoch), FullSet: g.chance(30), Force: g.chance(5)}
		for _, i := range g.Perm(12)[:g.IntN(7)] {
			op.Services = append(op.Services, g.service(i))
		}
		if g.chance(15) {
			op.Gone = append(op.Gone, generatedOwners[g.IntN(3)].Proto())
		}
		return opRegister(op)
	default:
		op := &rollcallv1.DeregisterOperation{Fence: g.fence(epoch), Force: g.chance(10)}
		for range g.IntN(4) {
			op.Ids = append(op.Ids, fmt.Sprintf("r-%d", g.IntN(12)))
		}
		return opDeregister(op)
	}
}

// importOperation returns the next operation of an import, sometimes of an earlier one or out of order.
func (g *generator) importOperation(epoch uint64) *rollcallv1.Operation {
	if g.chance(5) {
		epoch++
	}
	if g.imports > 0 && g.chance(40) {
		return opFinish(&rollcallv1.FinishImportOperation{
			Epoch: epoch, Import: fmt.Sprintf("i-%d", g.imports-g.IntN(2)*g.IntN(2)), Parts: g.parts, Apply: g.chance(80),
		})
	}
	if g.imports == 0 || g.chance(40) {
		g.imports++
		g.parts = 0
	}
	op := &rollcallv1.StageImportOperation{Epoch: epoch, Import: fmt.Sprintf("i-%d", g.imports), Part: g.parts}
	for _, i := range g.Perm(12)[:1+g.IntN(6)] {
		op.Services = append(op.Services, &rollcallv1.ImportedService{
			Service: g.service(i), Owner: generatedOwners[g.IntN(len(generatedOwners))].Proto(),
		})
	}
	if g.chance(30) {
		op.Owners = append(op.Owners, &rollcallv1.ImportedOwner{Owner: generatedOwners[g.IntN(3)].Proto(), Incarnation: g.Uint64N(4)})
	}
	g.parts++
	return opStage(op)
}

func (g *generator) service(i int) []byte {
	raw, err := EncodeService(&rollcallv1.Service{
		Id: fmt.Sprintf("r-%d", i), Kind: []string{"relayer", "relayer", "cache"}[g.IntN(3)],
		WorkerRef: &rollcallv1.WorkerRef{
			Url: fmt.Sprintf("http://r-%d:%d", i, g.IntN(3)), Node: "host-1", Labels: map[string]string{"chain": "1", "zone": "a"},
		},
	})
	if err != nil {
		panic(err)
	}
	return raw
}

func (g *generator) fence(epoch uint64) *rollcallv1.WriteFence {
	o := generatedOwners[g.IntN(len(generatedOwners))]
	if g.chance(5) {
		g.incarnation[o]++
		g.seq[o] = 0
	}
	if g.chance(85) {
		g.seq[o]++
	}
	f := writer(o, g.incarnation[o], g.seq[o], epoch)
	switch {
	case o == Operator && g.chance(50):
		f.Seq = 0
	case g.chance(5):
		f.Seq -= min(f.Seq, 2)
	case g.chance(5):
		f.Incarnation -= min(f.Incarnation, 1)
	case g.chance(5):
		f.Epoch += uint64(g.IntN(3)) - 1
	}
	if f.Seq > 0 && g.chance(70) { // other entries come from a leader that did not hash bodies
		f.Body = hashOf(fmt.Sprint("body ", g.IntN(3))).encoded()
	}
	return f
}

// history records the answers and changes that a replica returned.
type history struct {
	answers, feed strings.Builder
}

func (h *history) answered(logs []*raft.Log, answers []any) {
	for i, a := range answers {
		fmt.Fprintf(&h.answers, "%d:", logs[i].Index)
		if rs, ok := a.([]Result); ok {
			for _, r := range rs {
				fmt.Fprintf(&h.answers, " %s", dumpResult(r))
			}
		}
		h.answers.WriteByte('\n')
	}
}

func (h *history) read(t *testing.T, f *Feed) {
	all, err := drain(t, f)
	require.NoError(t, err)
	for _, c := range all {
		h.feed.WriteString(dumpChanges(c))
	}
}

// Random logs must give the same state, answers and feed, applied singly or in batches, with or without snapshots and
// restarts. A feed must turn an old state into the current one.
func TestMachine_RandomLogs_ReplicasAgree(t *testing.T) {
	t.Parallel()
	const entries = 120
	seeds := 60
	if testing.Short() {
		seeds = 20
	}
	var refused, superseded, stale, reused, lost int
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			g := newGenerator(seed)
			one, other := New(), New()
			var oneSaid, otherSaid history
			_, oneFeed := one.Watch()
			_, otherFeed := other.Watch()
			var pending []*raft.Log
			seen := []uint64{0}
			view := make(map[string]*Entry)

			for n := range entries {
				l := g.log(one.State().Epoch())
				answer := one.Apply(l)
				oneSaid.answered([]*raft.Log{l}, []any{answer})
				seen = append(seen, one.State().Index())

				pending = append(pending, l)
				if n < entries-1 && !g.chance(40) {
					continue
				}
				otherSaid.answered(pending, other.ApplyBatch(pending))
				pending = nil
				otherSaid.read(t, otherFeed)
				if g.chance(25) {
					file := snapshotOf(t, other.State())
					if g.chance(50) {
						other = New() // a restart; otherwise a snapshot from another node
					}
					require.NoError(t, restore(other, file))
					_, otherFeed = other.Watch()
				}
				checkInvariants(t, other)
				require.Equal(t, dump(one.State()), dump(other.State()), "after entry %d", l.Index)
			}
			checkInvariants(t, one)
			require.Equal(t, oneSaid.answers.String(), otherSaid.answers.String())

			// Read the feed from the start and from every later state.
			from := seen[g.IntN(len(seen))]
			resumed, err := one.WatchFrom(from)
			require.NoError(t, err)
			rest, err := drain(t, resumed)
			require.NoError(t, err)
			all, err := drain(t, oneFeed)
			require.NoError(t, err)
			for _, c := range all {
				oneSaid.feed.WriteString(dumpChanges(c))
				for _, ch := range c.Changes {
					require.True(t, step(view, ch), "Before differs from the reader's entry: %s", dumpChanges(c))
				}
			}
			require.Equal(t, oneSaid.feed.String(), otherSaid.feed.String())
			require.Equal(t, slices.DeleteFunc(all, func(c Changes) bool { return c.Index <= from }), append([]Changes{}, rest...))
			require.Len(t, view, one.State().Len())
			for e := range one.State().All() {
				require.Same(t, e, view[e.ID])
			}
			refused += strings.Count(oneSaid.answers.String(), "Conflicts:")
			superseded += strings.Count(oneSaid.answers.String(), "has since written")
			reused += strings.Count(oneSaid.answers.String(), "for another body")
			lost += strings.Count(oneSaid.answers.String(), "no longer staged")
			stale += strings.Count(oneSaid.answers.String(), "another epoch")
		})
	}
	// The logs must have produced every kind of refusal.
	require.Greater(t, min(refused, superseded, stale, reused, lost), seeds)
}
