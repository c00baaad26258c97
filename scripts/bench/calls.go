package main

import "fmt"

// race measures calls of a new etcd cluster and of a new cluster of ours in turn. ours must make this many times etcd's
// operations a second.
func (t *trial) race(etcdRow, ourRow string, atLeast float64, etcd func(*etcdCluster) result, ours func(*rollcallCluster, *fleet) result) {
	f := t.startFleet()
	t.inRounds(
		contender(etcdRow, func(t *trial) result { return etcd(t.startEtcd()) }),
		contender(ourRow, func(t *trial) result { return ours(t.newCluster(), f) }))
	t.versus(etcdRow, ourRow, "/s").atLeast(atLeast)
}

// writes measures calls with one service or key.
func writes(t *trial) {
	t.race("etcd: put, 64 clients, one connection", "RegisterServices of one, 64 clients, one connection", 1.25,
		func(c *etcdCluster) result { return c.puts(t.load(64)) },
		func(c *rollcallCluster, f *fleet) result { return c.registrations(f, t.load(64), 1, 1) })
}

// reads measures linearizable reads of one service or key a call.
func reads(t *trial) {
	t.race("etcd: linearizable get, 64 clients, one connection", "ListServices of one id, 64 clients, one connection", 1.2,
		func(c *etcdCluster) result { return c.gets(t.load(64)) },
		func(c *rollcallCluster, f *fleet) result { return c.lists(f, t.load(64)) })
}

// etcdTxn is a size of transaction and a number of clients.
type etcdTxn struct{ keys, clients int }

func (t etcdTxn) String() string {
	return fmt.Sprintf("etcd: keys in transactions of %d, %d clients", t.keys, t.clients)
}

// batches measures calls with many services or keys. etcd has its best transaction size and number of clients.
func batches(t *trial) {
	var grid []etcdTxn
	for _, keys := range []int{50, 100, 128, 250, 500, 1000, 2500} {
		for _, clients := range []int{1, 4, 16, 64} {
			grid = append(grid, etcdTxn{keys, clients})
		}
	}
	var best etcdTxn
	t.check(t.try(t.ctx, func(t *trial) {
		etcd := t.startEtcd()
		best = fastest(t, grid, func(txn etcdTxn) result {
			return etcd.txns(load{Callers: txn.clients, Warm: t.warm / 2, Window: t.window / 2}, txn.keys)
		})
	}))
	t.race(best.String(), "services registered, 1000 a call, 4 clients", 1.3,
		func(c *etcdCluster) result { return c.txns(t.load(best.clients), best.keys) },
		func(c *rollcallCluster, f *fleet) result { return c.registrations(f, t.load(4), 1000, 4) })
}
