package coordinator

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// bodyVersion is the command version that brought the body hash of a fence.
const bodyVersion = 2

// begin admits a write, and stamps the hash of its body into the fence. It refuses a sequence number that the owner
// has used for another body: here at once, and in the state machine where both are on their way.
func (n *Node) begin(l *leader, f *rollcallv1.WriteFence, hash func() fsm.BodyHash) (alone bool, end func(), err error) {
	owner := fsm.OwnerOf(f.Owner)
	if f.Seq == 0 {
		return l.ownerSessions.begin(owner, f.Incarnation, f.Seq, fsm.BodyHash{}) // not fenced, so nothing is ever compared
	}
	body := hash()
	known, _ := n.machine.State().Owner(owner)
	recorded := known.Body != fsm.BodyHash{}
	if recorded && known.Incarnation == f.Incarnation && known.Seq == f.Seq && known.Body != body {
		return false, nil, &fsm.SequenceReusedError{
			Owner: owner, Incarnation: f.Incarnation, Seq: f.Seq, Recorded: known.Body, Received: body,
		}
	}
	// A voter that is away says no version, and a new leader has not asked yet. An owner whose hash is in the
	// directory gets the next one all the same, because a voter that could not read it has stopped at the first.
	if r := n.raft.Load(); recorded || r != nil && n.commandVersion(r, fsm.CommandVersion) >= bodyVersion {
		f.Body = body[:]
	}
	return l.ownerSessions.begin(owner, f.Incarnation, f.Seq, body)
}

// The kinds of body. The hashes are compared across leaders and versions: they must never change.
const (
	bodyOfRegister   = 1
	bodyOfDeregister = 2
)

// hashRegister returns the hash of the caller's part of a registration: all but the fence, and the gone owners, which
// are the leader's to add.
func hashRegister(op *rollcallv1.RegisterOperation) fsm.BodyHash {
	h := newBody(bodyOfRegister, op.FullSet, op.Force)
	for _, encoded := range op.Services {
		addBody(h, encoded)
	}
	return fsm.BodyHash(h.Sum(nil))
}

// hashDeregister returns the hash of the caller's part of a deregistration.
func hashDeregister(op *rollcallv1.DeregisterOperation) fsm.BodyHash {
	h := newBody(bodyOfDeregister, false, op.Force)
	for _, id := range op.Ids {
		addBody(h, []byte(id))
	}
	return fsm.BodyHash(h.Sum(nil))
}

func newBody(kind byte, fullSet, force bool) hash.Hash {
	flags := byte(0)
	if fullSet {
		flags |= 1
	}
	if force {
		flags |= 2
	}
	h := sha256.New()
	h.Write([]byte{kind, flags})
	return h
}

// addBody adds one part with its length before it, so that parts cannot run into one another.
func addBody(h hash.Hash, part []byte) {
	h.Write(binary.AppendUvarint(nil, uint64(len(part))))
	h.Write(part)
}
