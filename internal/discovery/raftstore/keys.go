package raftstore

import (
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// Key names a value that a coordinator keeps in the stable store, in one file with Raft's term, vote and log.
type Key string

const (
	// KeyCluster is the identity of the cluster whose log the stores hold. Raft runs only after it is set.
	KeyCluster Key = "rollcall/cluster"
	// KeyProposal is the identity that the node proposes before a new cluster is founded.
	KeyProposal Key = "rollcall/proposal"
	// KeyRejoining is not empty while the node waits for a vote. Such a node knows that its cluster exists.
	KeyRejoining Key = "rollcall/rejoining"
)

// Get returns a value; "" if it is not set.
func Get(s raft.StableStore, key Key) (string, error) {
	value, err := s.Get([]byte(key))
	if err != nil && err.Error() == raftboltdb.ErrKeyNotFound.Error() { // Raft's own stores have the text only
		return "", nil
	}
	return string(value), err
}

// Set stores a value durably; "" clears it.
func Set(s raft.StableStore, key Key, value string) error {
	return s.Set([]byte(key), []byte(value))
}
