// Package raftstore keeps a node's Raft state on disk: the log and the vote in one bbolt file, snapshots in files.
//
// # What a bad disk does
//
// Raft goes on as if nothing had happened after some errors of its stores and panics after others. bbolt panics
// at a file that isn't sound, in a goroutine of its own even, or faults on a page that can't be read. Here every
// such end is one [Error] that names the file, what went wrong and what to do.
//
// [Open] walks the whole tree of the bbolt file before bbolt sees it, and compares where the log starts with
// where the newest snapshot ends. From then on any failure of the log or the vote, short of "not found", is handed
// to Config.Fatal, which is to end the process; Raft is never told and its goroutine never goes on. A node
// without a disk to write to must not lead, and one that forgot its vote must not vote.
//
// A snapshot that can't be written is only reported to Raft, which logs it and tries again later: nothing is
// lost by it, and as long as the log can be written the node is of use. A snapshot that can't be read is fatal,
// because Raft would fall back to an older one that the log doesn't continue.
//
// # What is not guaranteed
//
// bbolt keeps no checksums of its pages, so a flipped bit inside an entry's bytes shows, if at all, when the
// entry is decoded.
package raftstore
