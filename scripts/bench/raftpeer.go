package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
)

// Variants of the bare cluster: the product's options for Raft, and options that it rejected.
const (
	raftOwn       = "raw raft" // the product's own options
	raftPlain     = "raw raft, BatchApplyCh off"
	raftPipelined = "raw raft, pipelined"
)

var raftVariants = []string{raftOwn, raftPlain, raftPipelined}

func raftOptions(variant string) (config *raft.Config, inFlight int) {
	config, inFlight = coordinator.RaftConfig(coordinator.LAN), 1
	// The product packs concurrent commands into one. So its limits of commands per message, and of commands between
	// snapshots, are for few and large ones. Here each is 200 B.
	standard := raft.DefaultConfig()
	config.MaxAppendEntries = standard.MaxAppendEntries
	config.TrailingLogs = standard.TrailingLogs
	switch variant {
	case raftPlain:
		config.BatchApplyCh = false
	case raftPipelined:
		inFlight = raft.DefaultMaxRPCsInFlight
	}
	return config, inFlight
}

// tcpLayer is Raft's stream on a plain listener. Raft's own refuses some advertised addresses.
type tcpLayer struct{ net.Listener }

func newTCPLayer(addr string) (tcpLayer, error) {
	l, err := net.Listen("tcp", addr)
	return tcpLayer{l}, err
}

func (tcpLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(addr), timeout)
}

// raftCluster is three bare nodes.
type raftCluster struct {
	dir     string
	nodes   []*process
	control []string
}

func (s *suite) startRaft(ctx context.Context, variant string) (*raftCluster, error) {
	dir, err := s.freshDir("raft")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(6)
	if err != nil {
		return nil, err
	}
	c := &raftCluster{dir: dir, control: addrs[3:]}
	for i := range 3 {
		p, err := self("raft-"+strconv.Itoa(i), filepath.Join(dir, strconv.Itoa(i)), "raft-node",
			"-id", strconv.Itoa(i), "-peers", strings.Join(addrs[:3], ","), "-control", c.control[i], "-variant", variant)
		if err != nil {
			c.close()
			return nil, err
		}
		c.nodes = append(c.nodes, p)
	}
	err = until(ctx, 20*time.Second, func(ctx context.Context) error { _, err := c.leader(ctx); return err })
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *raftCluster) leader(ctx context.Context) (string, error) {
	for i, addr := range c.control {
		if err := c.nodes[i].running(); err != nil {
			return "", err
		}
		if body, err := httpGet(ctx, "http://"+addr+"/state"); err == nil && string(body) == raft.Leader.String() {
			return addr, nil
		}
	}
	return "", errors.New("no node leads")
}

// apply loads the leader with commands.
func (c *raftCluster) apply(ctx context.Context, l load, bytes int) (result, error) {
	addr, err := c.leader(ctx)
	if err != nil {
		return result{}, err
	}
	return postJSON[result](ctx, "http://"+addr+"/apply", applyOrder{l, bytes})
}

func (c *raftCluster) close() {
	for _, p := range c.nodes {
		p.kill()
	}
	os.RemoveAll(c.dir)
}

func httpGet(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return body, err
}

func postJSON[T any](ctx context.Context, url string, in any) (out T, err error) {
	data, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return out, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return out, err
	}
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("%s: %s: %s", url, resp.Status, bytes.TrimSpace(body))
	}
	return out, json.Unmarshal(body, &out)
}
