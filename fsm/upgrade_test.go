package fsm

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "write the files of the present command version into testdata, once")

// goldenLog returns a log with every operation and field of the current command version, every refusal, and random
// commands.
func goldenLog() (logs []*raft.Log) {
	m := New()
	add := func(l *raft.Log) {
		m.Apply(l)
		logs = append(logs, l)
	}
	add(&raft.Log{Index: 2, Term: 2, Data: encode(opEstablish("n-1", 0))})
	data, err := proto.Marshal(everything())
	if err != nil {
		panic(err)
	}
	add(&raft.Log{Index: 3, Term: 2, Data: data})
	g := newGenerator(1)
	g.index, g.term = 3, 3
	for len(logs) < 100 {
		if l := g.log(m.State().Epoch()); l.Type == raft.LogCommand {
			add(l)
		}
	}
	return logs
}

func writeLog(logs []*raft.Log) (file []byte) {
	for _, l := range logs {
		file = binary.AppendUvarint(file, l.Index)
		file = binary.AppendUvarint(file, l.Term)
		file = binary.AppendUvarint(file, uint64(len(l.Data)))
		file = append(file, l.Data...)
	}
	return file
}

func readLog(t testing.TB, file []byte) (logs []*raft.Log) {
	r := bytes.NewReader(file)
	number := func() uint64 {
		n, err := binary.ReadUvarint(r)
		require.NoError(t, err)
		return n
	}
	for r.Len() > 0 {
		l := &raft.Log{Index: number(), Term: number(), Data: make([]byte, number())}
		_, err := r.Read(l.Data)
		require.NoError(t, err)
		logs = append(logs, l)
	}
	return logs
}

// Logs and snapshots of every released version must lead to the same directory as in that version. For a new command
// version, run with -update and commit the new files next to the old ones.
func TestUpgrade_EveryReleasedVersion_GivesTheSameDirectory(t *testing.T) {
	name := func(version int, ext string) string {
		return filepath.Join("testdata", fmt.Sprintf("v%d.%s", version, ext))
	}
	if *update {
		_, err := os.Stat(name(CommandVersion, "log"))
		require.ErrorIs(t, err, os.ErrNotExist, "history is not written twice")
		logs, m := goldenLog(), New()
		m.ApplyBatch(logs)
		for ext, data := range map[string][]byte{
			"log": writeLog(logs), "snapshot": snapshotOf(t, m.State()), "txt": []byte(dump(m.State())),
		} {
			require.NoError(t, os.WriteFile(name(CommandVersion, ext), data, 0o644))
		}
	}
	for version := 1; version <= CommandVersion; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			read := func(ext string) []byte {
				data, err := os.ReadFile(name(version, ext))
				require.NoError(t, err)
				return data
			}
			logs, want := readLog(t, read("log")), string(read("txt"))
			require.Len(t, logs, 100)

			m := New()
			for _, l := range logs {
				m.Apply(l)
			}
			checkInvariants(t, m)
			require.Equal(t, want, dump(m.State()))

			m = New()
			require.NoError(t, restore(m, read("snapshot")))
			checkInvariants(t, m)
			require.Equal(t, want, dump(m.State()))
		})
	}
}
