package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

// raftNode is one process of a bare hashicorp/raft cluster on bolt, with a state machine that only counts. The callers
// use Raft directly: they are goroutines of the leader, started over HTTP.
func raftNode(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("raft-node", flag.ExitOnError)
	id := flags.Int("id", 0, "position among the peers")
	peers := flags.String("peers", "", "comma-separated addresses for Raft")
	control := flags.String("control", "", "address for HTTP")
	dir := flags.String("dir", ".", "data folder")
	variant := flags.String("variant", "own", "own, plain or pipelined")
	if err := flags.Parse(args); err != nil {
		return err
	}
	addrs := strings.Split(*peers, ",")
	config, inFlight := raftOptions(*variant)
	config.LocalID = raft.ServerID(addrs[*id])
	config.Logger = hclog.New(&hclog.LoggerOptions{Name: "raft", Output: os.Stderr, Level: hclog.Info})

	store, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(*dir, "raft.db"), BoltOptions: raftstore.BoltOptions()})
	if err != nil {
		return err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(*dir, 2, config.Logger)
	if err != nil {
		return err
	}
	layer, err := newTCPLayer(addrs[*id])
	if err != nil {
		return err
	}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 4, MaxRPCsInFlight: inFlight, Timeout: time.Second, Logger: config.Logger,
	})
	var servers []raft.Server
	for _, addr := range addrs {
		servers = append(servers, raft.Server{ID: raft.ServerID(addr), Address: raft.ServerAddress(addr)})
	}
	if err := raft.BootstrapCluster(config, store, store, snapshots, transport, raft.Configuration{Servers: servers}); err != nil {
		return err
	}
	r, err := raft.NewRaft(config, &countingFSM{}, store, store, snapshots, transport)
	if err != nil {
		return err
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, r.State()) })
	mux.HandleFunc("POST /apply", func(w http.ResponseWriter, req *http.Request) {
		var order applyOrder
		if err := json.NewDecoder(req.Body).Decode(&order); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		data := make([]byte, order.Bytes)
		res, err := order.Load.run(req.Context(), func(context.Context, int) (int, error) { return 1, r.Apply(data, 0).Error() })
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(res)
	})
	server := &http.Server{Addr: *control, Handler: mux}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return errors.Join(r.Shutdown().Error(), store.Close())
}

// applyOrder requests a leader to load itself.
type applyOrder struct {
	Load  load
	Bytes int
}

// countingFSM is a minimal state machine.
type countingFSM struct{ applied uint64 }

func (f *countingFSM) ApplyBatch(logs []*raft.Log) []any {
	f.applied += uint64(len(logs))
	return make([]any, len(logs))
}
func (f *countingFSM) Apply(*raft.Log) any                 { f.applied++; return nil }
func (f *countingFSM) Snapshot() (raft.FSMSnapshot, error) { return f, nil }
func (f *countingFSM) Restore(r io.ReadCloser) error       { return r.Close() }
func (f *countingFSM) Persist(sink raft.SnapshotSink) error {
	return sink.Close()
}
func (f *countingFSM) Release() {}
