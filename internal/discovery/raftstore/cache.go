package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// cacheBytes bounds what the cache holds, or a single entry that is larger. raft's own LogCache counts entries,
// which may have 100 bytes or 4 MiB.
const cacheBytes = 16 << 20

// entryBytes is what an entry takes beside its data, with room in the slice to grow.
const entryBytes = 200

// cache keeps the newest entries of a log in memory. A leader reads each entry once for every follower, and every
// node again to apply it: without the cache each time from the file, decoded again. Safe for concurrent use.
type cache struct {
	raft.LogStore

	mu    sync.RWMutex
	first uint64 // index of entries[0]
	// entries follow one another without a gap. Copies: a leader's are part of what waits for them to commit, results
	// and all.
	entries []raft.Log
	bytes   int
}

func newCache(store raft.LogStore) *cache { return &cache{LogStore: store} }

func (c *cache) GetLog(index uint64, log *raft.Log) error {
	c.mu.RLock()
	if index >= c.first && index-c.first < uint64(len(c.entries)) {
		*log = c.entries[index-c.first]
		c.mu.RUnlock()
		return nil
	}
	c.mu.RUnlock()
	return c.LogStore.GetLog(index, log)
}

func (c *cache) StoreLog(log *raft.Log) error { return c.StoreLogs([]*raft.Log{log}) }

// StoreLogs stores first and remembers after: what is in the cache is on disk.
func (c *cache) StoreLogs(logs []*raft.Log) error {
	if err := c.LogStore.StoreLogs(logs); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if l.Index != c.first+uint64(len(c.entries)) {
			c.clearLocked()
			c.first = l.Index
		}
		c.entries = append(c.entries, *l)
		c.bytes += entryBytes + len(l.Data)
	}
	drop := 0
	for c.bytes > cacheBytes && drop < len(c.entries)-1 {
		c.bytes -= entryBytes + len(c.entries[drop].Data)
		drop++
	}
	if drop > 0 {
		clear(c.entries[:drop])
		c.entries = c.entries[drop:]
		c.first += uint64(drop)
	}
	return nil
}

// DeleteRange forgets everything: it is rare, and either end of the log may be meant.
func (c *cache) DeleteRange(first, last uint64) error {
	c.mu.Lock()
	c.clearLocked()
	c.mu.Unlock()
	return c.LogStore.DeleteRange(first, last)
}

func (c *cache) clearLocked() {
	c.first, c.entries, c.bytes = 0, nil, 0
}
