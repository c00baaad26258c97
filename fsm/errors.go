package fsm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// ErrCompacted ends a feed whose reader fell too far behind, whose start is gone, or whose directory was replaced by a
// restored snapshot. The reader calls Watch again to start from the current state.
var ErrCompacted = errors.New("directory changes compacted")

// ErrImportLost refuses a part of an import, or its end, because the staged import is another one or lacks a part. The
// directory does not change.
var ErrImportLost = errors.New("the import is no longer staged: another import or another leader has replaced it; nothing was imported; import again")

// DecodeError is the error for a log entry or snapshot that this version cannot read.
type DecodeError struct {
	// Index is the Raft index of the entry; 0 for a snapshot.
	Index uint64
	Err   error
}

func (e *DecodeError) Error() string {
	if e.Index == 0 {
		return fmt.Sprintf("directory snapshot cannot be read: %v", e.Err)
	}
	return fmt.Sprintf("raft log entry %d cannot be applied: %v; run a version of rollcall that supports it", e.Index, e.Err)
}

func (e *DecodeError) Unwrap() error { return e.Err }

// BodyHash is the SHA-256 of a write's body; zero if its log entry has none.
type BodyHash [sha256.Size]byte

// String returns the whole hash in hex.
func (h BodyHash) String() string { return hex.EncodeToString(h[:]) }

// encoded returns the hash in the form of the log and of snapshots, nil for the zero hash.
func (h BodyHash) encoded() []byte {
	if h == (BodyHash{}) {
		return nil
	}
	return h[:]
}

// decodeBodyHash decodes the result of encoded.
func decodeBodyHash(raw []byte) (BodyHash, error) {
	if len(raw) == 0 {
		return BodyHash{}, nil
	}
	if len(raw) != sha256.Size {
		return BodyHash{}, fmt.Errorf("body hash of %d bytes, want %d", len(raw), sha256.Size)
	}
	return BodyHash(raw), nil
}

// StaleEpochError refuses a write of another epoch.
type StaleEpochError struct {
	// Epoch is the current epoch.
	Epoch uint64
}

func (e *StaleEpochError) Error() string {
	return fmt.Sprintf("the write carries another epoch than the present one, %d", e.Epoch)
}

// SupersededError refuses a write that is older than the last write of the same owner.
type SupersededError struct {
	Owner            Owner
	Incarnation, Seq uint64
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("%s has since written as incarnation %d, seq %d", e.Owner, e.Incarnation, e.Seq)
}

// SequenceReusedError refuses a write because its owner has used the sequence number for another body.
type SequenceReusedError struct {
	Owner            Owner
	Incarnation, Seq uint64
	// Recorded is the hash of the body that was written first, Received that of the refused body.
	Recorded, Received BodyHash
}

func (e *SequenceReusedError) Error() string {
	return fmt.Sprintf("%s has used seq %d of incarnation %d for another body (recorded %s, received %s); write another body with the next seq",
		e.Owner, e.Seq, e.Incarnation, e.Recorded, e.Received)
}

// Conflict is an entry that another owner owns.
type Conflict struct {
	// Index is the entry's position in the write.
	Index int
	ID    string
	Owner Owner
}

// ConflictError refuses a write that touches entries of other owners.
type ConflictError struct {
	// Deregister reports whether the write was a deregistration; otherwise it was a registration.
	Deregister bool
	Conflicts  []Conflict
}

func (e *ConflictError) Error() string {
	c := e.Conflicts[0]
	if more := len(e.Conflicts) - 1; more > 0 {
		return fmt.Sprintf("%s is owned by %s, and %d more are not the writer's", c.ID, c.Owner, more)
	}
	return fmt.Sprintf("%s is owned by %s", c.ID, c.Owner)
}
