package coordinator

import (
	"sync"

	"github.com/hashicorp/raft"
)

// appendBudget is how many bytes of entries one AppendEntries message carries, unless a single entry is larger. Raft
// only counts entries and uses one timeout for every message, which a message of many large entries would exceed. A
// follower that was down would receive the same message again and again, and never catch up.
const appendBudget = 1 << 20

// transport is Raft's transport. It limits the size of messages and refuses messages that fail check.
type transport struct {
	*raft.NetworkTransport
	check       func(command any) error
	replication *replication

	accepted chan raft.RPC
	close    func() // stops screen
	ended    chan struct{}
}

// newTransport takes ownership of the network. Raft closes it. check may refuse a message of another node.
func newTransport(network *raft.NetworkTransport, check func(command any) error, r *replication) *transport {
	stop := make(chan struct{})
	t := &transport{
		NetworkTransport: network, check: check, replication: r, accepted: make(chan raft.RPC),
		close: sync.OnceFunc(func() { close(stop) }), ended: make(chan struct{}),
	}
	go t.screen(stop)
	return t
}

// screen passes the messages that check accepts to Raft.
func (t *transport) screen(stop <-chan struct{}) {
	defer close(t.ended)
	for {
		var rpc raft.RPC
		select {
		case rpc = <-t.NetworkTransport.Consumer():
		case <-stop:
			return
		}
		if err := t.check(rpc.Command); err != nil {
			rpc.Respond(new(raft.AppendEntriesResponse), err)
			continue
		}
		select {
		case t.accepted <- rpc:
		case <-stop:
			return
		}
	}
}

// Consumer returns the messages for Raft.
func (t *transport) Consumer() <-chan raft.RPC { return t.accepted }

// Close closes the listeners. It is idempotent.
func (t *transport) Close() error {
	t.close()
	<-t.ended
	return t.NetworkTransport.Close()
}

// AppendEntries sends the first entries that fit appendBudget and truncates args to them. Raft treats the entries left
// in args as sent, and continues with the next.
func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	size := 0
	for i, e := range args.Entries {
		if size += len(e.Data); i > 0 && size > appendBudget {
			args.Entries = args.Entries[:i]
			break
		}
	}
	end := t.replication.begin(id, args)
	err := t.NetworkTransport.AppendEntries(id, target, args, resp)
	end(err == nil && resp.Success)
	return err
}
