package coordinator

import (
	"io"

	"github.com/hashicorp/raft"
)

// appendBudget is how many bytes of entries one AppendEntries message carries, unless a single entry is larger. Raft
// only counts entries and uses one timeout for every message, which a message of many large entries would exceed. A
// follower that was down would receive the same message again and again, and never catch up.
const appendBudget = 1 << 20

// transport is Raft's transport. It limits the size of messages, and records the progress of followers.
type transport struct {
	*raft.NetworkTransport
	replication *replication
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

// InstallSnapshot records the progress of the transfer and of the follower's work, for the watchdog.
func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	i := t.replication.install(data)
	err := t.NetworkTransport.InstallSnapshot(id, target, args, resp, i)
	i.end(err == nil && resp.Success)
	return err
}
