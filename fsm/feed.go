package fsm

import (
	"context"
	"sort"
)

// Change is one entry before and after a command: added without Before, removed without After.
type Change struct{ Before, After *Entry }

// Changes is what one command changed, in the order it did.
type Changes struct {
	// Index is the command's Raft index.
	Index   uint64
	Changes []Change
}

// maxFeed is how many changes are kept for readers that are behind, or that resume: 16 bytes each, and the
// entries they replaced.
const maxFeed = 1 << 18

// feedNode is a link of the list on which all feeds of a machine walk. A node that no feed and not the window
// points at is garbage, so an idle reader costs nothing and a slow one only what it has not read.
type feedNode struct {
	changes Changes
	total   uint64 // changes published up to and with this node
	// ready is closed once next and err are final; exactly one of them is then set.
	ready chan struct{}
	next  *feedNode
	err   error
}

func newFeedNode(c Changes, total uint64) *feedNode {
	return &feedNode{changes: c, total: total, ready: make(chan struct{})}
}

// window is the recent part of the list, for resuming. The machine's lock guards it.
type window struct {
	nodes []*feedNode // nodes[0] is the base: what it changed is before the window
	limit uint64
}

func newWindow(index uint64) *window {
	return &window{nodes: []*feedNode{newFeedNode(Changes{Index: index}, 0)}, limit: maxFeed}
}

func (w *window) tail() *feedNode { return w.nodes[len(w.nodes)-1] }

func (w *window) append(c Changes) {
	tail := w.tail()
	n := newFeedNode(c, tail.total+uint64(len(c.Changes)))
	w.nodes = append(w.nodes, n)
	tail.next = n
	close(tail.ready)

	first := 0
	for first < len(w.nodes)-1 && n.total-w.nodes[first].total > w.limit {
		first++
	}
	if first > len(w.nodes)/2 || first > 1024 { // amortise the copy
		w.nodes = append([]*feedNode(nil), w.nodes[first:]...)
	}
}

// end closes every feed with ErrCompacted.
func (w *window) end() {
	tail := w.tail()
	tail.err = ErrCompacted
	close(tail.ready)
}

// after finds the node whose successors are all changes after the index; nil when some of them are gone.
func (w *window) after(index uint64) *feedNode {
	i := sort.Search(len(w.nodes), func(i int) bool { return w.nodes[i].changes.Index > index })
	if i == 0 {
		return nil
	}
	return w.nodes[i-1]
}

// Feed delivers every change of the directory in order, to one reader.
type Feed struct {
	at *feedNode
	m  *Machine
}

// Next blocks for the next changes, until ctx ends. It fails with ErrCompacted when the directory was replaced
// or the reader is more than 262,144 changes behind, and keeps failing then. Not for concurrent use.
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
	if f.at.err != nil {
		return Changes{}, f.at.err
	}
	if f.m.published.Load()-f.at.total > maxFeed {
		return Changes{}, ErrCompacted
	}
	f.at = f.at.next
	return f.at.changes, nil
}

// Ready is closed when Next would not block.
func (f *Feed) Ready() <-chan struct{} { return f.at.ready }
