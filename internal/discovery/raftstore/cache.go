package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// cacheBytes is the maximum size of the cache, unless a single entry is larger. Raft's own LogCache counts entries,
// which may have 100 bytes or 4 MiB.
const cacheBytes = 16 << 20

// entryBytes is the size of an entry in addition to its data, including spare capacity of the slice.
const entryBytes = 200

// cache keeps the newest entries of a log in memory. A leader reads each entry once for every follower, and every node
// reads it again to apply it. Without the cache each read would decode the entry from the file. It is safe for
// concurrent use.
type cache struct {
	raft.LogStore

	mu    sync.RWMutex
	first uint64 // index of entries[0]
	// entries are consecutive. They are copies, because a leader's entries are part of its pending futures, including
	// their results.
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

// StoreLogs stores the entries before it caches them, so that cached entries are on disk.
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

// DeleteRange clears the cache, because it is rare and may affect either end of the log.
func (c *cache) DeleteRange(first, last uint64) error {
	c.mu.Lock()
	c.clearLocked()
	c.mu.Unlock()
	return c.LogStore.DeleteRange(first, last)
}

func (c *cache) clearLocked() {
	c.first, c.entries, c.bytes = 0, nil, 0
}
