// Package raftstore stores a node's Raft state on disk: the log and the vote in one bbolt file, snapshots in files.
//
// The coordinator calls it, and internal/cli for its errors. It calls bbolt and hashicorp/raft, and no other package of
// the project.
//
// # What a bad disk does
//
// Raft ignores some errors of its stores, and panics on others. bbolt panics on a damaged file, even in a goroutine of
// its own, or faults on an unreadable page. This package turns every such failure into one [Error] with the file, the
// cause and the remedy.
//
// [Open] checks the whole tree of the bbolt file before bbolt opens it, and compares the start of the log with the end
// of the newest snapshot. From then on any failure of the log or the vote, except "not found", is passed to
// Config.Fatal, which must end the process. Raft never receives the failure, and its goroutine blocks forever. A node
// that cannot write its disk must not lead, and a node that lost its vote must not vote.
//
// A failed write of a snapshot is only reported to Raft, which logs it and retries later. No data is lost, and the
// node works as long as the log is writable. A failed read of a snapshot is fatal, because Raft would fall back to an
// older one that the log does not continue.
//
// # What is not guaranteed
//
// bbolt has no checksums of its pages, so a flipped bit inside an entry is detected, if at all, when the entry is
// decoded.
package raftstore
