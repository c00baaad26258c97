package coordinator

import (
	"sync"

	"github.com/hashicorp/raft"
)

// appendBudget is how many bytes of entries one AppendEntries message carries, unless a single one is larger. Raft
// counts entries alone and gives each message the same time, which the largest at once could not keep: a follower
// that was down would get the same message again and again, and never catch up.
const appendBudget = 1 << 20

// transport is Raft's, less what is too much for one message, and what must not reach this node.
type transport struct {
	*raft.NetworkTransport
	check       func(command any) error
	replication *replication

	accepted chan raft.RPC
	close    func() // stops screen
	ended    chan struct{}
}

// newTransport takes the network over. Raft closes it. check may refuse what another node sends.
func newTransport(network *raft.NetworkTransport, check func(command any) error, r *replication) *transport {
	stop := make(chan struct{})
	t := &transport{
		NetworkTransport: network, check: check, replication: r, accepted: make(chan raft.RPC),
		close: sync.OnceFunc(func() { close(stop) }), ended: make(chan struct{}),
	}
	go t.screen(stop)
	return t
}

// screen passes on to Raft what check lets through.
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

// Consumer is what Raft answers.
func (t *transport) Consumer() <-chan raft.RPC { return t.accepted }

// Close ends what listens. It is idempotent.
func (t *transport) Close() error {
	t.close()
	<-t.ended
	return t.NetworkTransport.Close()
}

// AppendEntries sends the first of the entries and leaves only those in args: what Raft finds there afterwards it
// takes for sent, and it goes on with the next.
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
