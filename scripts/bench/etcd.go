package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// serviceBytes is the size of a registered service as encoded, and of etcd's key and value together.
const serviceBytes = 200

// keysPerCaller is how many keys or services a caller changes in turn. Both sides change as many values.
const keysPerCaller = 16

// etcdCluster is three etcd processes with etcd's own timing.
type etcdCluster struct {
	t         *trial
	nodes     []*proc.Process
	endpoints []string
	lead      int // position of the leader
}

func (t *trial) startEtcd() *etcdCluster {
	addrs := t.addresses(6)
	c := &etcdCluster{t: t, endpoints: addrs[3:]}
	var members []string
	for i := range 3 {
		members = append(members, fmt.Sprintf("etcd-%d=http://%s", i, addrs[i]))
	}
	for i := range 3 {
		c.nodes = append(c.nodes, t.start(t.TempDir(), nil, "", t.etcd, "--name", "etcd-"+strconv.Itoa(i), "--data-dir", "data",
			"--listen-peer-urls", "http://"+addrs[i], "--initial-advertise-peer-urls", "http://"+addrs[i],
			"--listen-client-urls", "http://"+c.endpoints[i], "--advertise-client-urls", "http://"+c.endpoints[i],
			"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "new",
			"--quota-backend-bytes", strconv.Itoa(8<<30),
			// For the best size of transaction; the defaults are 128 operations and 1.5 MiB.
			"--max-txn-ops", "10000", "--max-request-bytes", strconv.Itoa(8<<20)))
	}
	clients := []*clientv3.Client{c.client(0), c.client(1), c.client(2)}
	t.until(30*time.Second, func(ctx context.Context) error {
		for i, p := range c.nodes {
			status, err := clients[i].Status(ctx, c.endpoints[i])
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				c.lead = i
				return nil
			}
			if err := p.Running(); err != nil {
				return err
			}
		}
		return errors.New("no node leads")
	})
	return c
}

// client returns a new client of one node.
func (c *etcdCluster) client(node int) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: c.endpoints[node : node+1], Logger: zap.NewNop(), DialTimeout: 2 * time.Second,
		MaxCallSendMsgSize: 16 << 20})
	c.t.check(err)
	c.t.Cleanup(func() { client.Close() })
	return client
}

func etcdKey(caller, n int) string { return fmt.Sprintf("services/%03d-%05d", caller, n) }

// etcdPut fills the value up to serviceBytes, differently for each n.
func etcdPut(key string, n int) clientv3.Op {
	return clientv3.OpPut(key, fmt.Sprintf("%0*d", serviceBytes-len(key), n))
}

// puts measures puts of one key, over one connection to the leader.
func (c *etcdCluster) puts(l load) result {
	client := c.client(c.lead)
	return c.t.run(l, func(ctx context.Context, caller, n int) (int, error) {
		_, err := client.Do(ctx, etcdPut(etcdKey(caller, n%keysPerCaller), n))
		return 1, err
	})
}

// txns measures transactions that put a number of keys each. Each caller has a connection to the leader.
func (c *etcdCluster) txns(l load, keys int) result {
	clients := make([]*clientv3.Client, l.Callers)
	for i := range clients {
		clients[i] = c.client(c.lead)
	}
	return c.t.run(l, func(ctx context.Context, caller, n int) (int, error) {
		ops := make([]clientv3.Op, keys)
		for i := range ops {
			ops[i] = etcdPut(etcdKey(caller, i), n)
		}
		_, err := clients[caller].Txn(ctx).Then(ops...).Commit()
		return keys, err
	})
}

// gets measures linearizable reads of one key, which is etcd's default, over one connection to the leader.
func (c *etcdCluster) gets(l load) result {
	client := c.client(c.lead)
	for caller := range l.Callers {
		_, err := client.Do(c.t.ctx, etcdPut(etcdKey(caller, 0), 0))
		c.t.check(err)
	}
	return c.t.run(l, func(ctx context.Context, caller, _ int) (int, error) {
		resp, err := client.Get(ctx, etcdKey(caller, 0))
		if err == nil && len(resp.Kvs) != 1 {
			err = fmt.Errorf("%d keys where one was expected", len(resp.Kvs))
		}
		return 1, err
	})
}

// failover kills the leader and returns how long no write succeeded. Each surviving node has its own writer, so that
// none waits for another. Attempts are short, so that none waits for a lost answer.
func (c *etcdCluster) failover() time.Duration {
	ctx, cancel := context.WithTimeout(c.t.ctx, 30*time.Second)
	defer cancel()
	done, begin := make(chan time.Time, 3), make(chan struct{})
	for i := range c.nodes {
		if i == c.lead {
			continue
		}
		client := c.client(i)
		_, err := client.Put(ctx, "failover", "before")
		c.t.check(err)
		go func() {
			<-begin
			for ; ctx.Err() == nil; pause(ctx, 5*time.Millisecond) {
				attempt, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				_, err := client.Put(attempt, "failover", "after")
				cancel()
				if err == nil {
					done <- time.Now()
					return
				}
			}
		}()
	}
	killed := time.Now()
	c.nodes[c.lead].Kill()
	// Writes start only now, because writes accepted before the kill do not count.
	close(begin)
	select {
	case at := <-done:
		return at.Sub(killed)
	case <-ctx.Done():
		c.t.Fatal("no write in 30 s after the leader was killed")
		return 0
	}
}
