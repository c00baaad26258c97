package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// serviceBytes is the size of a registered service as encoded, and of etcd's key and value together.
const serviceBytes = 200

// etcdCluster is three etcd processes with etcd's own timing.
type etcdCluster struct {
	dir       string
	nodes     []*process
	endpoints []string
}

func (s *suite) startEtcd(ctx context.Context) (*etcdCluster, error) {
	dir, err := s.freshDir("etcd")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(6)
	if err != nil {
		return nil, err
	}
	c := &etcdCluster{dir: dir, endpoints: addrs[3:]}
	var members []string
	for i := range 3 {
		members = append(members, fmt.Sprintf("etcd-%d=http://%s", i, addrs[i]))
	}
	for i := range 3 {
		p, err := start("etcd-"+strconv.Itoa(i), filepath.Join(dir, strconv.Itoa(i)), nil, s.etcd,
			"--name", "etcd-"+strconv.Itoa(i), "--data-dir", "data",
			"--listen-peer-urls", "http://"+addrs[i], "--initial-advertise-peer-urls", "http://"+addrs[i],
			"--listen-client-urls", "http://"+c.endpoints[i], "--advertise-client-urls", "http://"+c.endpoints[i],
			"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "new",
			"--log-level", "warn", "--quota-backend-bytes", strconv.Itoa(8<<30),
			// For the best size of transaction; the defaults are 128 operations and 1.5 MiB.
			"--max-txn-ops", "10000", "--max-request-bytes", strconv.Itoa(8<<20))
		if err != nil {
			c.close()
			return nil, err
		}
		c.nodes = append(c.nodes, p)
	}
	err = until(ctx, 30*time.Second, func(ctx context.Context) error { _, err := c.leader(ctx); return err })
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// leader returns the index of the node that leads.
func (c *etcdCluster) leader(ctx context.Context) (int, error) {
	for i := range c.nodes {
		if err := c.nodes[i].running(); err != nil {
			return 0, err
		}
		client, err := newEtcdClient(c.endpoints[i])
		if err != nil {
			return 0, err
		}
		status, err := client.Status(ctx, c.endpoints[i])
		client.Close()
		if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
			return i, nil
		}
	}
	return 0, errors.New("no node leads")
}

func (c *etcdCluster) close() {
	for _, p := range c.nodes {
		p.kill()
	}
	os.RemoveAll(c.dir)
}

func newEtcdClient(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 2 * time.Second,
		MaxCallSendMsgSize: 16 << 20})
}

// etcdShape is how callers connect to the cluster. The fastest way depends on the machine, so all are tried.
type etcdShape struct {
	shared bool // one connection for all callers, not one each
	spread bool // to all nodes, not to the leader only
}

func (e etcdShape) String() string {
	name := ", a connection each"
	if e.shared {
		name = ", one connection"
	}
	if e.spread {
		name += ", all nodes"
	}
	return name
}

// clients returns a client for each of n callers, and a function that closes them.
func (c *etcdCluster) clients(ctx context.Context, n int, shape etcdShape) ([]*clientv3.Client, func(), error) {
	leader, err := c.leader(ctx)
	if err != nil {
		return nil, nil, err
	}
	clients := make([]*clientv3.Client, n)
	closeAll := func() {
		for i, client := range clients {
			if client != nil && (i == 0 || !shape.shared) {
				client.Close()
			}
		}
	}
	for i := range clients {
		if i > 0 && shape.shared {
			clients[i] = clients[0]
			continue
		}
		endpoints := []string{c.endpoints[leader]}
		switch {
		case shape.spread && shape.shared:
			endpoints = c.endpoints
		case shape.spread:
			endpoints = []string{c.endpoints[i%len(c.endpoints)]}
		}
		if clients[i], err = newEtcdClient(endpoints...); err != nil {
			closeAll()
			return nil, nil, err
		}
	}
	return clients, closeAll, nil
}

// keysPerCaller is how many keys or services a caller changes in turn. Both sides change as many values.
const keysPerCaller = 16

func etcdKey(caller, n int) string { return fmt.Sprintf("services/%03d-%05d", caller, n) }

// etcdValue fills up to serviceBytes, differently for each n.
func etcdValue(key string, n int) string {
	return fmt.Sprintf("%0*d", serviceBytes-len(key), n)
}

func (c *etcdCluster) puts(ctx context.Context, l load, shape etcdShape) (result, error) {
	clients, closeAll, err := c.clients(ctx, l.Callers, shape)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	turn := make([]int, l.Callers)
	return l.run(ctx, func(ctx context.Context, caller int) (int, error) {
		turn[caller]++
		key := etcdKey(caller, turn[caller]%keysPerCaller)
		_, err := clients[caller].Put(ctx, key, etcdValue(key, turn[caller]))
		return 1, err
	})
}

func (c *etcdCluster) txns(ctx context.Context, l load, keys int) (result, error) {
	clients, closeAll, err := c.clients(ctx, l.Callers, etcdShape{})
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	turn := make([]int, l.Callers)
	return l.run(ctx, func(ctx context.Context, caller int) (int, error) {
		turn[caller]++
		ops := make([]clientv3.Op, keys)
		for i := range ops {
			key := etcdKey(caller, i)
			ops[i] = clientv3.OpPut(key, etcdValue(key, turn[caller]))
		}
		_, err := clients[caller].Txn(ctx).Then(ops...).Commit()
		return keys, err
	})
}

// gets measures linearizable reads of one key, which is etcd's default.
func (c *etcdCluster) gets(ctx context.Context, l load, shape etcdShape) (result, error) {
	clients, closeAll, err := c.clients(ctx, l.Callers, shape)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	for caller := range l.Callers {
		key := etcdKey(caller, 0)
		if _, err := clients[caller].Put(ctx, key, etcdValue(key, 0)); err != nil {
			return result{}, err
		}
	}
	return l.run(ctx, func(ctx context.Context, caller int) (int, error) {
		resp, err := clients[caller].Get(ctx, etcdKey(caller, 0))
		if err == nil && len(resp.Kvs) != 1 {
			err = fmt.Errorf("%d keys where one was expected", len(resp.Kvs))
		}
		return 1, err
	})
}

// failover kills the leader and returns how long no write succeeded. Each surviving node has its own writer, so that
// none waits for another. Attempts are short, so that none waits for a lost answer.
func (c *etcdCluster) failover(ctx context.Context) (time.Duration, error) {
	leader, err := c.leader(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	done := make(chan time.Time, 3)
	var killed time.Time
	begin := make(chan struct{})
	for i := range c.nodes {
		if i == leader {
			continue
		}
		client, err := newEtcdClient(c.endpoints[i])
		if err != nil {
			return 0, err
		}
		defer client.Close()
		if _, err := client.Put(ctx, "failover", "before"); err != nil {
			return 0, err
		}
		go func() {
			<-begin
			for ctx.Err() == nil {
				attempt, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				_, err := client.Put(attempt, "failover", "after")
				cancel()
				if err == nil {
					done <- time.Now()
					return
				}
				pause(ctx, 5*time.Millisecond)
			}
		}()
	}
	killed = time.Now()
	c.nodes[leader].kill()
	// Writes start only now, because writes accepted before the kill do not count.
	close(begin)
	select {
	case at := <-done:
		return at.Sub(killed), nil
	case <-ctx.Done():
		return 0, errors.New("no write in 30 s after the leader was killed")
	}
}
