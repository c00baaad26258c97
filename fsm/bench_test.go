package fsm

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const benchBatch = 10_000

// benchID spreads consecutive numbers over the whole key space, as random or hashed names would.
func benchID(i int) string {
	return fmt.Sprintf("relayer-%08x-%07d", uint32(i)*2654435761, i)
}

// benchService returns a service that takes 200 encoded bytes in a command.
func benchService(i, value int) []byte {
	id := benchID(i)
	raw, err := EncodeService(&rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{
		Url:    "http://" + id + ".example:3000",
		Node:   fmt.Sprintf("host-%05d", i%1000),
		Labels: map[string]string{"chain": "ethereum", "revision": fmt.Sprintf("%08d-0123456789abcdef-0123456789abcdef-0123456789abcdef-012345678", value)},
	}})
	if err != nil {
		panic(err)
	}
	return raw
}

func benchRegister(owner Owner, ids []int, value int, fullSet bool) []byte {
	op := &rollcallv1.RegisterOperation{FullSet: fullSet, Fence: &rollcallv1.WriteFence{Owner: owner.Proto()}}
	for _, i := range ids {
		op.Services = append(op.Services, benchService(i, value))
	}
	data, err := proto.Marshal(&rollcallv1.Command{Operations: []*rollcallv1.Operation{
		{Kind: &rollcallv1.Operation_Register{Register: op}},
	}})
	if err != nil {
		panic(err)
	}
	return data
}

// benchMachine returns a machine with the services 0 to size-1 and one gateway for each 10,000.
func benchMachine(tb testing.TB, size int) (m *Machine, index uint64) {
	m = New()
	for from := 0; from < size; from += benchBatch {
		ids := make([]int, 0, benchBatch)
		for i := from; i < min(from+benchBatch, size); i++ {
			ids = append(ids, i)
		}
		index++
		rs := m.Apply(&raft.Log{Index: index, Data: benchRegister(benchOwner(from), ids, 0, false)}).([]Result)
		require.NoError(tb, rs[0].Err)
	}
	require.Equal(tb, size, m.State().Len())
	return m, index
}

func benchOwner(i int) Owner {
	return Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: fmt.Sprintf("edge-%d", i/benchBatch)}
}

// BenchmarkApply registers changed services, in commands of one and of 10,000, in directories of three sizes.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{0, 100_000, 1_000_000} {
		m, index := benchMachine(b, size)
		for _, batch := range []int{1, benchBatch} {
			b.Run(fmt.Sprintf("size=%d/batch=%d", size, batch), func(b *testing.B) {
				// The owner is a separate gateway with 10,000 services spread over the key space.
				owner := benchOwner(size + benchBatch)
				const variants = 4
				var cmds [][]byte
				for v := range variants {
					for from := 0; from < benchBatch; from += batch {
						ids := make([]int, batch)
						for i := range ids {
							ids[i] = size + from + i
						}
						cmds = append(cmds, benchRegister(owner, ids, v+1, false))
					}
				}
				for _, c := range cmds {
					index++
					m.Apply(&raft.Log{Index: index, Data: c})
				}
				runtime.GC()
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					index++
					m.Apply(&raft.Log{Index: index, Data: cmds[n%len(cmds)]})
					n++
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*batch), "ns/service")
			})
		}
		// Each full set replaces the previous one entirely: 10,000 services are added and 10,000 removed.
		b.Run(fmt.Sprintf("size=%d/replace", size), func(b *testing.B) {
			owner := benchOwner(size + 2*benchBatch)
			var cmds [2][]byte
			for v := range cmds {
				ids := make([]int, benchBatch)
				for i := range ids {
					ids[i] = size + (v+1)*benchBatch + i
				}
				cmds[v] = benchRegister(owner, ids, 1, true)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				index++
				m.Apply(&raft.Log{Index: index, Data: cmds[n%2]})
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*benchBatch), "ns/service")
		})
	}
}

// BenchmarkTakeOver registers 10,000 services that have 10,000 gone owners.
func BenchmarkTakeOver(b *testing.B) {
	var (
		m        *Machine
		index    uint64
		commands [][]byte
		gone     []*rollcallv1.Owner
	)
	ids := make([]int, benchBatch)
	apply := func(data []byte) {
		index++
		for _, r := range m.Apply(&raft.Log{Index: index, Data: data}).([]Result) {
			require.NoError(b, r.Err)
		}
	}
	for i := range ids {
		ids[i] = i
		owner := Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: fmt.Sprintf("edge-%d", i)}
		gone = append(gone, owner.Proto())
		commands = append(commands, benchRegister(owner, ids[i:i+1], 0, false))
	}
	var takeOver rollcallv1.Command
	require.NoError(b, proto.Unmarshal(benchRegister(benchOwner(1<<30), ids, 0, false), &takeOver))
	takeOver.Operations[0].GetRegister().Gone = gone
	last, err := proto.Marshal(&takeOver)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		m, index = New(), 0
		for _, c := range commands {
			apply(c)
		}
		b.StartTimer()
		apply(last)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchBatch), "ns/service")
}

// BenchmarkSnapshot writes and reads a directory of a million services.
func BenchmarkSnapshot(b *testing.B) {
	m, _ := benchMachine(b, 1_000_000)
	var file bytes.Buffer
	require.NoError(b, m.State().WriteSnapshot(&file))
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, m.State().WriteSnapshot(io.Discard))
		}
		b.ReportMetric(float64(file.Len())/1e6, "MB")
	})
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, New().Restore(io.NopCloser(bytes.NewReader(file.Bytes()))))
		}
	})
}

// BenchmarkMemory reports the memory per 200-byte service in a directory of a million: registered in random order in
// batches, registered one per command, and restored from a snapshot.
func BenchmarkMemory(b *testing.B) {
	const size = 1_000_000
	measure := func(b *testing.B, build func() *Machine) {
		for b.Loop() {
			before := heap()
			m := build()
			b.ReportMetric(float64(heap()-before)/size, "B/service")
			runtime.KeepAlive(m)
		}
	}
	b.Run("batches", func(b *testing.B) {
		measure(b, func() *Machine { m, _ := benchMachine(b, size); return m })
	})
	b.Run("single", func(b *testing.B) {
		measure(b, func() *Machine {
			m := New()
			for n, i := range rand.New(rand.NewPCG(1, 2)).Perm(size) {
				m.Apply(&raft.Log{Index: uint64(n + 1), Data: benchRegister(benchOwner(i), []int{i}, 0, false)})
			}
			return m
		})
	})
	b.Run("restored", func(b *testing.B) {
		var file bytes.Buffer
		{
			m, _ := benchMachine(b, size)
			require.NoError(b, m.State().WriteSnapshot(&file))
		}
		measure(b, func() *Machine {
			m := New()
			require.NoError(b, m.Restore(io.NopCloser(bytes.NewReader(file.Bytes()))))
			return m
		})
	})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc
}
