package cli

import (
	"slices"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// NodeFlags identify a coordinator: its id, its cluster and its data folder.
type NodeFlags struct {
	NodeID  string   `env:"ROLLCALL_NODE_ID" help:"This node's id, a DNS label; always the same, and of this node only."`
	Peers   []string `env:"ROLLCALL_PEERS" placeholder:"ID=HOST:PORT" help:"The coordinators the cluster starts with, this one included: three or five."`
	DataDir string   `env:"ROLLCALL_DATA_DIR" default:"data" help:"Data folder: the log, snapshots and identity of this node alone, on a disk that persists."`
}

// CheckFlags reports what is wrong with them. A node that advertises an address of its own need not be a peer.
func (f *NodeFlags) CheckFlags(p *config.Problems, advertises bool) {
	if err := rollcallv1.CheckDNSLabel(f.NodeID); err != nil {
		p.Addf(&f.NodeID, "", "%v", err)
	}
	const form = "give all coordinators as id=host:port, such as coordinator-1=coordinator-1:7400"
	if len(f.Peers) == 0 {
		p.Addf(&f.Peers, form, "is missing")
		return
	}
	ids, addresses := map[string]bool{}, map[string]bool{}
	for _, peer := range f.PeerList() {
		host, port, err := SplitHostPort(peer.Address)
		switch {
		case rollcallv1.CheckDNSLabel(peer.ID) != nil || err != nil || host == "" || port == 0:
			p.Addf(&f.Peers, form, "%q is not id=host:port", strings.TrimSuffix(peer.ID+"="+peer.Address, "="))
		case ids[peer.ID] || addresses[peer.Address]:
			p.Addf(&f.Peers, "name each once", "%q is named twice", peer.ID+"="+peer.Address)
		}
		ids[peer.ID], addresses[peer.Address] = true, true
	}
	if !slices.Contains([]int{1, 3, 5}, len(f.Peers)) {
		p.Addf(&f.Peers, "name three or five, this one included; one is for trying things out", "there are %d", len(f.Peers))
	}
	if f.NodeID != "" && !ids[f.NodeID] && !advertises {
		p.Addf(&f.Peers, "add it, or give its address with --advertise", "this node, %q, is not among them", f.NodeID)
	}
}

// PeerList returns the coordinators of Peers.
func (f *NodeFlags) PeerList() []coordinator.Peer {
	var peers []coordinator.Peer
	for _, peer := range f.Peers {
		id, address, _ := strings.Cut(peer, "=")
		peers = append(peers, coordinator.Peer{ID: id, Address: address})
	}
	return peers
}
