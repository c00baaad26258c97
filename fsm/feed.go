package fsm

import (
	"context"
	"sort"
	"sync/atomic"
)

// Change is one entry before and after a command: added without Before, removed without After.
type Change struct{ Before, After *Entry }

// Changes is what one command changed, in the order it did.
type Changes struct {
	// Index is the command's Raft index.
	Index   uint64
	Changes []Change
}

// maxFeed is how many changes are kept for readers that are behind, or that resume, and maxFeedBytes how many bytes
// their services have: what was replaced or removed is in memory only for them, and may be large.
const (
	maxFeed      = 1 << 18
	maxFeedBytes = 128 << 20
)

// feedNode is a link of the list on which all feeds of a machine walk. It points forwards only: what no feed
// and not the window reaches is garbage.
type feedNode struct {
	changes Changes
	total   uint64 // changes published up to and with this node
	bytes   uint64 // of the services in them
	ready   chan struct{}
	// next is set before ready is closed, and again, to compacted, when the node leaves the window: a reader
	// that stands still must not keep all that comes after it.
	next atomic.Pointer[feedNode]
}

// compacted follows the nodes that have left the window.
var compacted = new(feedNode)

func newFeedNode(c Changes, before *feedNode) *feedNode {
	n := &feedNode{changes: c, ready: make(chan struct{})}
	if before != nil {
		n.total, n.bytes = before.total+uint64(len(c.Changes)), before.bytes+c.size()
	}
	return n
}

// size is how many bytes the services before and after have.
func (c Changes) size() (bytes uint64) {
	for _, ch := range c.Changes {
		for _, e := range []*Entry{ch.Before, ch.After} {
			if e != nil {
				bytes += uint64(len(e.raw))
			}
		}
	}
	return bytes
}

// window is the recent part of the list. The machine's lock guards it.
type window struct {
	// nodes[0] is the base: the changes kept are those that follow it.
	nodes             []*feedNode
	limit, limitBytes uint64
	// start is the index of the state that the window began with, first that of the first command after it, 0
	// before there was one. Indexes in between belong to a past that a restored snapshot has replaced.
	start, first uint64
}

func newWindow(index uint64) *window {
	return &window{nodes: []*feedNode{newFeedNode(Changes{Index: index}, nil)}, limit: maxFeed, limitBytes: maxFeedBytes, start: index}
}

func (w *window) tail() *feedNode { return w.nodes[len(w.nodes)-1] }

func (w *window) append(c Changes) {
	tail := w.tail()
	n := newFeedNode(c, tail)
	w.nodes = append(w.nodes, n)
	tail.next.Store(n)
	close(tail.ready)
	// What follows the base may exceed the limit by its first command, so that no command is too big for a
	// reader who has read all before it.
	for len(w.nodes) > 2 && (n.total-w.nodes[1].total > w.limit || n.bytes-w.nodes[1].bytes > w.limitBytes) {
		w.nodes[0].next.Store(compacted)
		w.nodes[0] = nil
		w.nodes = w.nodes[1:]
	}
}

// end ends every feed.
func (w *window) end() {
	for _, n := range w.nodes {
		n.next.Store(compacted)
	}
	close(w.tail().ready)
}

// after finds the node whose successors are all changes after the index; nil when some of them are gone.
func (w *window) after(index uint64) *feedNode {
	if w.start < index && index < w.first {
		return nil
	}
	i := sort.Search(len(w.nodes), func(i int) bool { return w.nodes[i].changes.Index > index })
	if i == 0 {
		return nil
	}
	return w.nodes[i-1]
}

// Feed delivers every change of the directory in order, to one reader. A reader that stops costs nothing and
// may be dropped; there is nothing to close.
type Feed struct{ at *feedNode }

// Next blocks for the next changes, until ctx ends. It fails with ErrCompacted when the directory was replaced
// or the reader is more than 262,144 changes or 128 MiB of services behind, and keeps failing then. Not for concurrent use.
func (f *Feed) Next(ctx context.Context) (Changes, error) {
	select {
	case <-f.at.ready:
	default:
		select {
		case <-f.at.ready:
		case <-ctx.Done():
			return Changes{}, context.Cause(ctx)
		}
	}
	next := f.at.next.Load()
	if next == compacted {
		return Changes{}, ErrCompacted
	}
	f.at = next
	return f.at.changes, nil
}

// Ready is closed when Next would not block.
func (f *Feed) Ready() <-chan struct{} { return f.at.ready }
