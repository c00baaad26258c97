package raftstore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// retainedSnapshots is one snapshot to start from, and one for a crash while it is replaced.
const retainedSnapshots = 2

// Config configures the folder of the state and the handler of fatal errors.
type Config struct {
	// Dir is the node's data folder, created if missing. The state is in Dir/raft, accessible to the owner only.
	Dir string
	// Fatal is called once, with an *Error, when the state can no longer be stored. It must end the process. The Raft
	// goroutine with the error blocks forever, even if Fatal returns.
	Fatal func(error)
	// Logger receives the log; by default there is none.
	Logger *slog.Logger
}

func (c *Config) withDefaults() error {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler)).With("component", "raftstore")
	var problems []error
	if c.Dir == "" {
		problems = append(problems, errors.New("no data folder"))
	}
	if c.Fatal == nil {
		problems = append(problems, errors.New("no handler of fatal errors"))
	}
	return errors.Join(problems...)
}

// BoltOptions returns the options of the bbolt file. The free list is not written with each commit. It is rebuilt by a
// scan at start, and kept in a hash map. Both make commits to large files much cheaper.
func BoltOptions() *bbolt.Options {
	return &bbolt.Options{
		NoFreelistSync: true,
		FreelistType:   bbolt.FreelistMapType,
		Timeout:        time.Second,
	}
}

// Stores are the three stores of a Raft node. They are safe for concurrent use.
type Stores struct {
	cfg       Config
	dir, path string

	bolt      *raftboltdb.BoltStore
	snapshots raft.SnapshotStore
	logs      *cache

	once   sync.Once   // guards Fatal
	failed atomic.Bool // bbolt may hold locks permanently
	closed atomic.Bool
}

// Open opens the stores, which no other process may have open. It reports damaged files as an *Error.
func Open(cfg Config) (*Stores, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("raft store: %w", err)
	}
	// Until the state's own file is locked, no other process may replace the state.
	unlock, err := lockPaths(cfg.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkReplaced(cfg); err != nil {
		return nil, err
	}
	return openStores(cfg, filepath.Join(cfg.Dir, stateFolder))
}

// stateFile is the bbolt file of the log and the vote.
const stateFile = "raft.db"

func openStores(cfg Config, dir string) (*Stores, error) {
	s := &Stores{cfg: cfg, dir: dir, path: filepath.Join(dir, stateFile)}
	s.logs = newCache((*boltStore)(s))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, newError(dir, makeFolder, err)
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, retainedSnapshots, NewHCLog(cfg.Logger))
	if err != nil {
		return nil, newError(dir, "open snapshots", err)
	}
	s.snapshots = snapshots

	var file *os.File
	options := BoltOptions()
	options.OpenFile = func(path string, flag int, mode fs.FileMode) (*os.File, error) {
		opened, err := openChecked(path, flag, mode, options.Timeout)
		file = opened
		return opened, err
	}
	err = protect(func() (err error) {
		s.bolt, err = raftboltdb.New(raftboltdb.Options{Path: s.path, BoltOptions: options})
		return err
	})
	if err != nil {
		if file != nil {
			closeLocked(file) // a panic in bbolt leaves it open and locked
		}
		return nil, newError(s.path, "open", err)
	}
	if err := errors.Join(syncDir(dir), protect(s.checkComplete)); err != nil {
		_ = s.bolt.Close() // the first error is the relevant one
		return nil, newError(s.path, "open", err)
	}
	return s, nil
}

// checkComplete detects a lost or exchanged file. The log must continue where the newest snapshot ends. A node with a
// snapshot must have a stored term.
func (s *Stores) checkComplete() error {
	snapshots, err := s.snapshots.List()
	if err != nil {
		return err
	}
	var covered uint64
	if len(snapshots) > 0 {
		covered = snapshots[0].Index
		if _, err := s.bolt.GetUint64([]byte("CurrentTerm")); errors.Is(err, raftboltdb.ErrKeyNotFound) {
			return errors.New("the vote is missing though there is a snapshot")
		}
	}
	first, err := s.bolt.FirstIndex()
	if err != nil {
		return err
	}
	if first > covered+1 {
		return fmt.Errorf("the log starts at %d but the newest readable snapshot ends at %d", first, covered)
	}
	return nil
}

// Logs returns the log, with its newest entries in memory.
func (s *Stores) Logs() raft.LogStore { return s.logs }

// Stable returns the store of the vote.
func (s *Stores) Stable() raft.StableStore { return (*boltStore)(s) }

// Snapshots returns the snapshots.
func (s *Stores) Snapshots() raft.SnapshotStore { return (*snapshotStore)(s) }

// LogBytes returns the size of the log's file; 0 if it cannot be read.
func (s *Stores) LogBytes() int64 {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// SnapshotBytes returns the total size of all readable snapshots.
func (s *Stores) SnapshotBytes() (total int64) {
	snapshots, err := s.snapshots.List()
	if err != nil {
		return 0
	}
	for _, snapshot := range snapshots {
		total += snapshot.Size
	}
	return total
}

// Close closes the files. Raft must have been shut down before. Close is idempotent.
func (s *Stores) Close() error {
	if s.closed.Swap(true) || s.failed.Load() {
		return nil
	}
	if err := s.bolt.Close(); err != nil {
		return newError(s.path, "close", err)
	}
	return nil
}

// do runs an operation on a file. It returns nil and expected errors. After any other error it calls Fatal and never
// returns.
func (s *Stores) do(path, op string, f func() error, expected ...error) error {
	err := protect(f)
	if err == nil || s.closed.Load() {
		return err
	}
	for _, e := range expected {
		if errors.Is(err, e) {
			return err
		}
	}
	s.failed.Store(true)
	s.once.Do(func() { s.cfg.Fatal(newError(path, op, err)) })
	select {}
}

// protect converts a panic in f into an error. This includes a fault, such as reading a memory-mapped page beyond the
// end of its file.
func protect(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errUnsound, r)
		}
	}()
	return f()
}

// boltStore is the log and the vote.
type boltStore Stores

func (b *boltStore) do(op string, f func() error) error {
	return (*Stores)(b).do(b.path, op, f, raft.ErrLogNotFound, raftboltdb.ErrKeyNotFound)
}

func (b *boltStore) FirstIndex() (index uint64, err error) {
	err = b.do("find the first log entry", func() (err error) { index, err = b.bolt.FirstIndex(); return err })
	return index, err
}

func (b *boltStore) LastIndex() (index uint64, err error) {
	err = b.do("find the last log entry", func() (err error) { index, err = b.bolt.LastIndex(); return err })
	return index, err
}

func (b *boltStore) GetLog(index uint64, log *raft.Log) error {
	return b.do("read the log", func() error { return b.bolt.GetLog(index, log) })
}

func (b *boltStore) StoreLog(log *raft.Log) error {
	return b.do("append to the log", func() error { return b.bolt.StoreLog(log) })
}

func (b *boltStore) StoreLogs(logs []*raft.Log) error {
	return b.do("append to the log", func() error { return b.bolt.StoreLogs(logs) })
}

func (b *boltStore) DeleteRange(first, last uint64) error {
	return b.do("shorten the log", func() error { return b.bolt.DeleteRange(first, last) })
}

func (b *boltStore) Set(key, value []byte) error {
	return b.do("store the vote", func() error { return b.bolt.Set(key, value) })
}

func (b *boltStore) Get(key []byte) (value []byte, err error) {
	err = b.do("read the vote", func() (err error) { value, err = b.bolt.Get(key); return err })
	return value, err
}

func (b *boltStore) SetUint64(key []byte, value uint64) error {
	return b.do("store the vote", func() error { return b.bolt.SetUint64(key, value) })
}

func (b *boltStore) GetUint64(key []byte) (value uint64, err error) {
	err = b.do("read the vote", func() (err error) { value, err = b.bolt.GetUint64(key); return err })
	return value, err
}

// snapshotStore treats only a failed read as fatal.
type snapshotStore Stores

func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	return s.snapshots.Create(version, index, term, configuration, configurationIndex, trans)
}

func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) { return s.snapshots.List() }

func (s *snapshotStore) Open(id string) (meta *raft.SnapshotMeta, content io.ReadCloser, err error) {
	path := filepath.Join(s.dir, "snapshots", id)
	// A newer snapshot may have replaced it since it was listed.
	err = (*Stores)(s).do(path, "read the snapshot", func() (err error) {
		meta, content, err = s.snapshots.Open(id)
		return err
	}, fs.ErrNotExist)
	return meta, content, err
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
