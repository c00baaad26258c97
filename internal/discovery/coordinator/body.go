package coordinator

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// bodyVersion is the command version that added the body hash to a fence.
const bodyVersion = 2

// begin admits a write, and stamps the hash of its body into the fence. It refuses a sequence number that the owner
// has used for another body. If both writes are in flight, the state machine refuses the second.
func (n *Node) begin(l *leader, f *rollcallv1.WriteFence, hash func() fsm.BodyHash) (alone bool, end func(), err error) {
	owner := fsm.OwnerOf(f.Owner)
	if f.Seq == 0 {
		return l.ownerSessions.begin(owner, f.Incarnation, f.Seq, fsm.BodyHash{}) // not fenced, so bodies are never compared
	}
	body := hash()
	known, _ := n.machine.State().Owner(owner)
	recorded := known.Body != fsm.BodyHash{}
	if recorded && known.Incarnation == f.Incarnation && known.Seq == f.Seq && known.Body != body {
		return false, nil, &fsm.SequenceReusedError{
			Owner: owner, Incarnation: f.Incarnation, Seq: f.Seq, Recorded: known.Body, Received: body,
		}
	}
	// An unreachable voter reports no version, and a new leader has not asked yet. If the directory already has a hash
	// of this owner, every running voter reads hashes, because an older voter stopped at the first one.
	if r := n.raft.Load(); recorded || r != nil && n.commandVersion(r, fsm.CommandVersion) >= bodyVersion {
		f.Body = body[:]
	}
	return l.ownerSessions.begin(owner, f.Incarnation, f.Seq, body)
}

// The constants are the kinds of body. They must never change, because hashes are compared across leaders and
// versions.
const (
	bodyOfRegister   = 1
	bodyOfDeregister = 2
)

// hashRegister returns the hash of the caller's part of a registration. It excludes the fence and the gone owners,
// which the leader adds.
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

// addBody adds one part prefixed with its length, so that adjacent parts cannot be confused.
func addBody(h hash.Hash, part []byte) {
	h.Write(binary.AppendUvarint(nil, uint64(len(part))))
	h.Write(part)
}
