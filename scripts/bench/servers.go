package main

import (
	"context"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// startGeth starts a node with its own chain on disk, that seals a block each second, and whose pool accepts everything. args are further
// ones of its command line.
func (t *trial) startGeth(fund []common.Address, args ...string) *chain.Node {
	node := chain.Geth(t, chain.GethOptions{Accounts: 1, Args: append([]string{
		"--cache", "1024", "--dev.gaslimit", "1000000000",
		"--txpool.accountslots", "100000", "--txpool.globalslots", "200000",
		"--txpool.accountqueue", "100000", "--txpool.globalqueue", "200000",
	}, args...)})
	node.Fund(chain.Ether(1_000_000), fund...)
	return node
}

const (
	// minedPoll is how often the node is asked for its head: its cost should not affect the measurement.
	minedPoll = 20 * time.Millisecond
	// minedLimit is how long no transaction may be mined.
	minedLimit = 30 * time.Second
)

// mined returns when exactly this many transactions of the addresses are mined.
func (t *trial) mined(node *chain.Node, addresses []common.Address, want uint64) time.Time {
	var last, before uint64
	for moved := time.Now(); time.Since(moved) < minedLimit; t.pause(minedPoll) {
		head, err := node.Client().BlockNumber(t.ctx)
		t.check(err)
		if head == last {
			continue
		}
		at, n := time.Now(), uint64(0)
		for _, address := range addresses {
			count, err := node.Client().NonceAt(t.ctx, address, new(big.Int).SetUint64(head))
			t.check(err)
			n += count
		}
		switch {
		case n == want:
			return at
		case n > want:
			t.Fatalf("%d transactions are mined where %d were sent", n, want)
		case n > before:
			moved = at
		}
		last, before = head, n
	}
	t.Fatalf("%d of %d transactions are mined, and no more came for %s", before, want, minedLimit)
	return time.Time{}
}

// startPostgres starts a PostgreSQL with the product's settings: fsync on, a commit answers when it is on the disk.
func (t *trial) startPostgres() *pgserver.Server {
	dir, err := pgserver.Folder(t.ctx, t.TempDir(), "")
	t.check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	port, err := proc.FreePort()
	t.check(err)
	server, err := pgserver.Start(t.ctx, pgserver.Config{Dir: dir, Port: port})
	t.check(err)
	t.Cleanup(func() { _ = server.Kill() }) // its data is deleted with it
	return server
}

// connect opens a connection until the trial ends.
func (t *trial) connect(url string) *pgx.Conn {
	conn, err := pgx.Connect(t.ctx, url)
	t.check(err)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.ctx)) })
	return conn
}

// freshDatabase makes an empty database, flushes earlier writes, and returns the database's URL, a secret.
func (t *trial) freshDatabase(server *pgserver.Server, name string) string {
	conn := t.connect(server.URL())
	for _, sql := range []string{"DROP DATABASE IF EXISTS %s WITH (FORCE)", "CREATE DATABASE %s", "CHECKPOINT -- %s"} {
		_, err := conn.Exec(t.ctx, fmt.Sprintf(sql, name))
		t.check(err)
	}
	return server.DatabaseURL(name)
}
