package raftstore_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

// fillEnv makes the test binary a node that writes to the named folder until it fails.
const fillEnv = "RAFTSTORE_TEST_FILL"

// limitEnv limits the size of the node's files, in bytes.
const limitEnv = "RAFTSTORE_TEST_LIMIT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(fillEnv); dir != "" {
		os.Exit(fill(dir, os.Getenv(limitEnv)))
	}
	if dir := os.Getenv(replaceEnv); dir != "" {
		os.Exit(replaceAndDie(dir, os.Getenv(killEnv)))
	}
	goleak.VerifyTestMain(m)
}

func fill(dir, limit string) int {
	if limit != "" {
		var size uint64
		if _, err := fmt.Sscan(limit, &size); err != nil {
			panic(err)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: size}); err != nil {
			panic(err)
		}
	}
	stores, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	last, err := stores.Logs().LastIndex()
	if err != nil {
		panic(err)
	}
	if err := stores.Stable().SetUint64([]byte("CurrentTerm"), 1); err != nil {
		panic(err)
	}
	for {
		last++
		entry := &raft.Log{Index: last, Term: 1, Data: []byte(strings.Repeat("x", 10_000))}
		if err := stores.Logs().StoreLogs([]*raft.Log{entry}); err != nil {
			panic(fmt.Sprintf("raft was told: %v", err))
		}
		fmt.Fprintln(os.Stdout, last) // acknowledged
	}
}
