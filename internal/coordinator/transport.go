package coordinator

import "github.com/hashicorp/raft"

// appendBudget is how many bytes of entries one AppendEntries message carries, unless a single one is larger. Raft
// counts entries alone and gives each message the same time, which the largest at once could not keep: a follower
// that was down would get the same message again and again, and never catch up.
const appendBudget = 1 << 20

// transport is Raft's, less what is too much for one message.
type transport struct{ *raft.NetworkTransport }

// AppendEntries sends the first of the entries and leaves only those in args: what Raft finds there afterwards it
// takes for sent, and it goes on with the next.
func (t transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	size := 0
	for i, e := range args.Entries {
		if size += len(e.Data); i > 0 && size > appendBudget {
			args.Entries = args.Entries[:i]
			break
		}
	}
	return t.NetworkTransport.AppendEntries(id, target, args, resp)
}
