package fsm

import (
	"context"
	"sort"
	"sync/atomic"
)

// Change is one entry before and after a command. An added entry has no Before, a removed one no After.
type Change struct{ Before, After *Entry }

// Changes holds the changes of one command, in order.
type Changes struct {
	// Index is the command's Raft index.
	Index   uint64
	Changes []Change
}

// maxFeed is how many changes are kept for readers that lag or resume. maxFeedBytes is how many bytes their services
// may have, because replaced and removed services are in memory only for these readers and may be large.
const (
	maxFeed      = 1 << 18
	maxFeedBytes = 128 << 20
)

// feedNode is a link of the list that all feeds of a machine follow. It points forwards only, so a node that neither a
// feed nor the window reaches is garbage.
type feedNode struct {
	changes Changes
	total   uint64 // changes published up to and including this node
	bytes   uint64 // size of the services in those changes
	ready   chan struct{}
	// next is set before ready is closed. It is set again, to compacted, when the node leaves the window, because an
	// idle reader must not retain all later nodes.
	next atomic.Pointer[feedNode]
}

// compacted is the successor of the nodes that have left the window.
var compacted = new(feedNode)

func newFeedNode(c Changes, before *feedNode) *feedNode {
	n := &feedNode{changes: c, ready: make(chan struct{})}
	if before != nil {
		n.total, n.bytes = before.total+uint64(len(c.Changes)), before.bytes+c.size()
	}
	return n
}

// size returns the size in bytes of the services before and after the changes.
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

// window is the recent part of the list. Machine.mu guards it.
type window struct {
	// nodes[0] is the base: the changes kept are those after it.
	nodes             []*feedNode
	limit, limitBytes uint64
	// start is the index of the state that the window began with. first is the index of the first command after it, 0
	// before there is one. Indexes in between belong to a history that a restored snapshot has replaced.
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
	// The first command after the base may exceed the limit, so that no command is too big for a reader that has read
	// all earlier changes.
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

// after returns the node whose successors are all changes after the index, or nil if some of them are gone.
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

// Feed delivers every change of the directory in order, to one reader. An abandoned Feed costs nothing and needs no
// Close.
type Feed struct{ at *feedNode }

// Next blocks until the next changes or the end of ctx. It returns ErrCompacted, from then on, if the directory was
// replaced or the reader is more than 262,144 changes or 128 MiB of services behind. It is not for concurrent use.
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

// Ready returns a channel that is closed when Next would not block.
func (f *Feed) Ready() <-chan struct{} { return f.at.ready }
