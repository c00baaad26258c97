package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rollcall-dev/rollcall/fsm"
)

const (
	// logBudget is how many bytes of commands are applied before a snapshot shortens the log. Raft's own threshold
	// counts entries, which may have 100 bytes or 4 MiB.
	logBudget = 64 << 20
	// A snapshot leaves about as many entries in the log as fit logBudget, for followers that lag a little.
	minTrailing, maxTrailing = 64, 10240
	snapshotPeriod           = 5 * time.Second
)

// snapshotter is the state machine that Raft drives. It also tracks the size of the log.
type snapshotter struct {
	*fsm.Machine
	raft *raft.Raft
	log  *slog.Logger
	// fatal receives the error of an entry that cannot be applied.
	fatal func(error)

	bytes, entries atomic.Int64 // since the last snapshot, by run or by Raft
}

func newSnapshotter(m *fsm.Machine, log *slog.Logger, fatal func(error)) *snapshotter {
	return &snapshotter{Machine: m, log: log, fatal: fatal}
}

// ApplyBatch wraps the machine's ApplyBatch. It counts entries, and ends the process if an entry cannot be applied.
// Raft's goroutine then stays blocked, because it must neither skip the entry nor continue.
func (s *snapshotter) ApplyBatch(logs []*raft.Log) []any {
	size := 0
	for _, l := range logs {
		size += len(l.Data)
	}
	s.bytes.Add(int64(size))
	s.entries.Add(int64(len(logs)))
	defer func() {
		if r := recover(); r != nil {
			err, ok := r.(error)
			var decode *fsm.DecodeError
			if !ok || !errors.As(err, &decode) {
				panic(r)
			}
			s.fatal(decode)
			select {}
		}
	}()
	return s.Machine.ApplyBatch(logs)
}

// Snapshot wraps the machine's Snapshot. The counters exclude its content once it is written, also if Raft did not request it.
func (s *snapshotter) Snapshot() (raft.FSMSnapshot, error) {
	snapshot, err := s.Machine.Snapshot()
	return &countedSnapshot{snapshot, s, s.bytes.Load(), s.entries.Load()}, err
}

type countedSnapshot struct {
	raft.FSMSnapshot
	s              *snapshotter
	bytes, entries int64
}

func (c *countedSnapshot) Persist(sink raft.SnapshotSink) error {
	err := c.FSMSnapshot.Persist(sink)
	if err == nil {
		c.s.bytes.Add(-c.bytes)
		c.s.entries.Add(-c.entries)
	}
	return err
}

// keep sets how many entries the next snapshot leaves in the log: as many as fit logBudget, at the size of recent
// entries.
func (s *snapshotter) keep(bytes, entries int64) error {
	reload := s.raft.ReloadableConfig()
	trailing := uint64(min(max(logBudget*entries/max(bytes, 1), minTrailing), maxTrailing))
	if entries == 0 || trailing == reload.TrailingLogs {
		return nil
	}
	reload.TrailingLogs = trailing
	if err := s.raft.ReloadConfig(reload); err != nil {
		return fmt.Errorf("set trailing logs: %w", err)
	}
	return nil
}

// run takes a snapshot whenever the log exceeds logBudget, or the directory's size if that is larger. Raft takes its
// own snapshots by the number of entries. keep sets the entries to leave for those too.
func (s *snapshotter) run(ctx context.Context) error {
	tick := time.NewTicker(snapshotPeriod)
	defer tick.Stop()
	var last int64 // approximate size of the directory at the last snapshot
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		size, entries := s.bytes.Load(), s.entries.Load()
		if err := s.keep(size, entries); err != nil {
			return err
		}
		if size < max(logBudget, last) {
			continue
		}
		started := time.Now()
		switch err := s.raft.Snapshot().Error(); {
		case errors.Is(err, raft.ErrNothingNewToSnapshot): // for example after a snapshot from the leader
			s.bytes.Add(-size)
			s.entries.Add(-entries)
		case err != nil:
			s.log.Warn("snapshot not taken", "err", err)
			continue
		}
		last = 0
		for e := range s.State().All() {
			last += int64(e.Size())
		}
		s.log.Debug("snapshot taken", "bytes", last, "duration", time.Since(started))
	}
}
