package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// ClusterCmd has the commands that administer the coordinators.
type ClusterCmd struct {
	Status   clusterStatusCmd   `cmd:"" help:"List coordinators and their state."`
	Add      clusterAddCmd      `cmd:"" changes:"" help:"Add a coordinator that has been started, or give a non-voter its vote."`
	Remove   clusterRemoveCmd   `cmd:"" changes:"" help:"Remove a coordinator from the cluster."`
	Transfer clusterTransferCmd `cmd:"" changes:"" help:"Hand the leadership to another coordinator."`
	Snapshot clusterSnapshotCmd `cmd:"" help:"Save the directory to a file."`
	Restore  clusterRestoreCmd  `cmd:"" changes:"" help:"Make a saved directory the state of a stopped coordinator, from which the others then start."`
}

// member is a coordinator, for scripts.
type member struct {
	ID             string `json:"id"`
	Address        string `json:"address"`
	ClientAddress  string `json:"clientAddress"`
	HTTPAddress    string `json:"httpAddress"`
	Voter          bool   `json:"voter"`
	Leader         bool   `json:"leader"`
	Reachable      bool   `json:"reachable"`
	Term           uint64 `json:"term"`
	AppliedIndex   uint64 `json:"appliedIndex"`
	CommandVersion uint32 `json:"commandVersion"`
	Version        string `json:"version"`
	RelayerCount   uint32 `json:"relayerCount"`
}

func (m member) row() []string {
	role, state := "voter", "ok"
	switch {
	case m.Leader:
		role = "leader"
	case !m.Voter:
		role = "non-voter"
	}
	if !m.Reachable {
		return []string{m.ID, m.Address, role, "does not answer", "", "", "", ""}
	}
	return []string{m.ID, m.Address, role, state, number(m.Term), number(m.AppliedIndex), m.HTTPAddress, m.Version}
}

type members struct {
	Cluster string   `json:"cluster"`
	Epoch   uint64   `json:"epoch"`
	Leader  string   `json:"leader"`
	Members []member `json:"members"`
}

func membersOf(resp *rollcallv1.ListMembersResponse) members {
	list := members{Cluster: resp.GetCluster(), Epoch: resp.GetEpoch(), Members: []member{}}
	for _, m := range resp.GetMembers() {
		if m.GetLeader() {
			list.Leader = m.GetId()
		}
		list.Members = append(list.Members, member{
			ID: m.GetId(), Address: m.GetAddress(), ClientAddress: m.GetClientAddress(), HTTPAddress: m.GetHttpAddress(),
			Voter: m.GetSuffrage() == rollcallv1.Suffrage_SUFFRAGE_VOTER, Leader: m.GetLeader(), Reachable: m.GetReachable(),
			Term: m.GetTerm(), AppliedIndex: m.GetAppliedIndex(), CommandVersion: m.GetCommandVersion(),
			Version: m.GetVersion(), RelayerCount: m.GetRelayerCount(),
		})
	}
	return list
}

func (l members) table(w io.Writer) {
	var rows [][]string
	for _, m := range l.Members {
		rows = append(rows, m.row())
	}
	table(w, "ID ADDRESS ROLE STATE TERM APPLIED HTTP VERSION", rows)
	fmt.Fprintf(w, "cluster %s, epoch %d, leader %s\n", cmp.Or(l.Cluster, "-"), l.Epoch, cmp.Or(l.Leader, "-"))
}

type clusterStatusCmd struct {
	OutputFlags
	RemoteFlags
}

func (c *clusterStatusCmd) Check(p *config.Problems) { c.check(p) }

// leaderWait is how long "cluster status" looks for a leader before it asks any node that answers.
const leaderWait = 2 * time.Second

func (c *clusterStatusCmd) Run(ctx context.Context, con *Console) error {
	client, ctx, end, err := c.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	leading, cancel := context.WithTimeout(ctx, min(leaderWait, c.Timeout/2))
	defer cancel()
	conn, _, noLeader := client.LeaderConn(leading)
	var resp *rollcallv1.ListMembersResponse
	if noLeader == nil {
		if resp, err = rollcallv1.NewClusterServiceClient(conn).ListMembers(ctx, &rollcallv1.ListMembersRequest{}); err != nil {
			return gateway.FromStatus(err)
		}
	} else if resp = c.askAnyone(ctx, client); resp == nil {
		return noLeader
	}
	list := membersOf(resp)
	if err := c.Print(con.Stdout, list, list.table); err != nil {
		return err
	}
	return noLeader
}

// askAnyone asks coordinators for their view until one answers, nil when none does.
func (c *clusterStatusCmd) askAnyone(ctx context.Context, client *gateway.Client) *rollcallv1.ListMembersResponse {
	for _, address := range c.Addresses() {
		if _, err := client.Ping(ctx, address); err != nil {
			continue
		}
		conn, err := client.Conn(address)
		if err != nil {
			continue
		}
		resp, err := rollcallv1.NewClusterServiceClient(conn).ListMembers(ctx, &rollcallv1.ListMembersRequest{})
		if err == nil {
			return resp
		}
	}
	return nil
}

// change calls the leader to change the cluster. A call that was certainly not done, because that node does not lead, is
// retried on the next one. A call that may have been done is an UnknownOutcomeError. The timeout limits all but the calls, which
// only ctx limits.
func (r *RemoteFlags) change(ctx context.Context, client *gateway.Client,
	call func(context.Context, rollcallv1.ClusterServiceClient, ...grpc.CallOption) error,
) error {
	limit := time.Now().Add(r.Timeout)
	for {
		searching, cancel := context.WithDeadline(ctx, limit)
		conn, _, err := client.LeaderConn(searching)
		cancel()
		if err != nil {
			return err
		}
		var to peer.Peer // filled in once the call is on its way
		began := time.Now()
		raw := call(ctx, rollcallv1.NewClusterServiceClient(conn), grpc.Peer(&to))
		limit = limit.Add(time.Since(began))
		err = gateway.FromStatus(raw)
		_, notLeader := errors.AsType[*gateway.NotLeaderError](err)
		switch {
		case notLeader, errors.Is(err, gateway.ErrNotEstablished):
			if !time.Now().Before(limit) { // a known leader is returned without a search
				return err
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(leaderPause):
			}
		case to.Addr != nil && lostOnTheWay(raw, err):
			return &gateway.UnknownOutcomeError{Cause: plain(err), Err: err}
		default:
			return err
		}
	}
}

const leaderPause = 100 * time.Millisecond

// lostOnTheWay reports whether a call broke off without an answer.
func lostOnTheWay(raw, restored error) bool {
	if restored != raw { //nolint:errorlint // only whether a typed refusal was restored
		return errors.Is(restored, context.Canceled) || errors.Is(restored, context.DeadlineExceeded)
	}
	return status.Code(raw) == codes.Unavailable
}

type clusterAddCmd struct {
	ID       string `arg:"" help:"Its node id."`
	Address  string `arg:"" help:"Its cluster port, host:port."`
	NonVoter bool   `help:"Replicate to it, but give it no vote."`
	RemoteFlags
}

func (c *clusterAddCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterAddCmd) Run(ctx context.Context, con *Console) error {
	client, ctx, end, err := c.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = c.change(ctx, client, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) error {
		_, err := cluster.AddMember(ctx, &rollcallv1.AddMemberRequest{Id: c.ID, Address: c.Address, NonVoter: c.NonVoter}, opts...)
		return err
	})
	if err != nil {
		return err
	}
	if c.NonVoter {
		fmt.Fprintf(con.Stdout, "%s is a non-voter\n", c.ID)
	} else {
		fmt.Fprintf(con.Stdout, "%s is added; it votes as soon as it has caught up, which \"rollcall cluster status\" shows\n", c.ID)
	}
	return nil
}

type clusterRemoveCmd struct {
	ID string `arg:"" help:"Its node id."`
	RemoteFlags
}

func (c *clusterRemoveCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterRemoveCmd) Run(ctx context.Context, con *Console) error {
	client, ctx, end, err := c.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = c.change(ctx, client, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) error {
		_, err := cluster.RemoveMember(ctx, &rollcallv1.RemoveMemberRequest{Id: c.ID}, opts...)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "%s is removed; stop its process now\n", c.ID)
	return nil
}

type clusterTransferCmd struct {
	To string `arg:"" optional:"" help:"Node id of the next leader; by default the one furthest ahead of those that keep up."`
	RemoteFlags
}

func (c *clusterTransferCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterTransferCmd) Run(ctx context.Context, con *Console) error {
	client, ctx, end, err := c.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	before, err := client.Leader(ctx)
	if err != nil {
		return err
	}
	if before.Node == c.To {
		fmt.Fprintf(con.Stdout, "%s leads already, epoch %d\n", before.Node, before.Epoch)
		return nil
	}
	err = c.change(ctx, client, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) error {
		_, err := cluster.TransferLeadership(ctx, &rollcallv1.TransferLeadershipRequest{To: c.To}, opts...)
		return err
	})
	unknown, gaveUp := errors.AsType[*gateway.UnknownOutcomeError](err)
	if err != nil && !gaveUp {
		return err
	}
	// Raft gives up after an election's time on a transfer that may still happen: what counts is who leads.
	watching, cancel := context.WithTimeout(ctx, transferWatch)
	defer cancel()
	for l := range client.Leaders(watching) {
		switch {
		case l.Epoch <= before.Epoch:
		case c.To != "" && l.Node != c.To:
			return fmt.Errorf("%s leads, epoch %d", l.Node, l.Epoch)
		default:
			fmt.Fprintf(con.Stdout, "%s leads, epoch %d\n", l.Node, l.Epoch)
			return nil
		}
	}
	cause := "it handed over"
	if gaveUp {
		cause = unknown.Cause
	}
	return &gateway.UnknownOutcomeError{
		Cause: fmt.Sprintf("%s leads as far as is known, epoch %d, and may hand over yet (%s); if it stays the leader, repeat the transfer", before.Node, before.Epoch, cause),
		Err:   err,
	}
}

// transferWatch is how long after a transfer the new leader is awaited: several elections.
const transferWatch = 3 * time.Second

type clusterSnapshotCmd struct {
	File string `arg:"" help:"File to write, replaced when whole; - writes standard output."`
	RemoteFlags
}

func (c *clusterSnapshotCmd) Check(p *config.Problems) { c.check(p) }

func (c *clusterSnapshotCmd) Run(ctx context.Context, con *Console) (err error) {
	client, limited, end, err := c.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	snapshot, leader, err := takeSnapshot(ctx, limited, client)
	if err != nil {
		return err
	}
	if c.File == "-" {
		_, err := io.Copy(con.Stdout, snapshot)
		return err
	}
	size, err := replaceFile(c.File, func(w io.Writer) (int64, error) { return io.Copy(w, snapshot) })
	if err != nil {
		return err
	}
	fmt.Fprintf(con.Stdout, "%s: %d bytes, from %s, epoch %d\n", c.File, size, leader.Node, leader.Epoch)
	return nil
}

// takeSnapshot requests a snapshot from the leader. Its duration depends on its size, so limited is for finding the leader
// only.
func takeSnapshot(ctx, limited context.Context, client *gateway.Client) (*snapshotReader, gateway.Leader, error) {
	conn, leader, err := client.LeaderConn(limited)
	if err != nil {
		return nil, leader, err
	}
	stream, err := rollcallv1.NewClusterServiceClient(conn).TakeSnapshot(ctx, &rollcallv1.TakeSnapshotRequest{})
	if err != nil {
		return nil, leader, gateway.FromStatus(err)
	}
	return &snapshotReader{stream: stream}, leader, nil
}

// snapshotReader reads the content of a snapshot stream.
type snapshotReader struct {
	stream grpc.ServerStreamingClient[rollcallv1.TakeSnapshotResponse]
	rest   []byte
}

func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		resp, err := r.stream.Recv()
		if err != nil {
			return 0, gateway.FromStatus(err) // also io.EOF
		}
		r.rest = resp.GetChunk()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// replaceFile writes a file aside and renames it when it is whole and on disk.
func replaceFile(path string, write func(io.Writer) (int64, error)) (size int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	size, err = write(f)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	return size, os.Rename(f.Name(), path)
}
