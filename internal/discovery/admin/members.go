package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Members are the coordinators of a cluster. Their JSON is for scripts.
type Members struct {
	Cluster string   `json:"cluster"`
	Epoch   uint64   `json:"epoch"`
	Leader  string   `json:"leader"`
	Members []Member `json:"members"`
}

// Member is a coordinator.
type Member struct {
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

func membersOf(resp *rollcallv1.ListMembersResponse) *Members {
	all := &Members{Cluster: resp.GetCluster(), Epoch: resp.GetEpoch(), Members: []Member{}}
	for _, m := range resp.GetMembers() {
		if m.GetLeader() {
			all.Leader = m.GetId()
		}
		all.Members = append(all.Members, Member{
			ID: m.GetId(), Address: m.GetAddress(), ClientAddress: m.GetClientAddress(), HTTPAddress: m.GetHttpAddress(),
			Voter: m.GetSuffrage() == rollcallv1.Suffrage_SUFFRAGE_VOTER, Leader: m.GetLeader(), Reachable: m.GetReachable(),
			Term: m.GetTerm(), AppliedIndex: m.GetAppliedIndex(), CommandVersion: m.GetCommandVersion(),
			Version: m.GetVersion(), RelayerCount: m.GetRelayerCount(),
		})
	}
	return all
}

// leaderWait is how long Members looks for a leader before it asks any coordinator that answers.
const leaderWait = 2 * time.Second

// Members returns the leader's view of the coordinators. If none leads, it returns the view of the first one that answers,
// together with the reason why there is no leader. Without any view it returns nil and an error.
func (a *Admin) Members(ctx context.Context) (*Members, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	leading, cancel := context.WithTimeout(ctx, min(leaderWait, a.timeout/2))
	defer cancel()
	conn, _, err := a.client.LeaderConn(leading)
	if err != nil {
		return a.askAnyone(ctx), err
	}
	resp, err := rollcallv1.NewClusterServiceClient(conn).ListMembers(ctx, &rollcallv1.ListMembersRequest{})
	if err != nil {
		return nil, gateway.FromStatus(err)
	}
	return membersOf(resp), nil
}

// askAnyone asks coordinators for their view until one answers, nil when none does.
func (a *Admin) askAnyone(ctx context.Context) *Members {
	for _, address := range a.coordinators {
		if _, err := a.client.Ping(ctx, address); err != nil {
			continue
		}
		conn, err := a.client.Conn(address)
		if err != nil {
			continue
		}
		resp, err := rollcallv1.NewClusterServiceClient(conn).ListMembers(ctx, &rollcallv1.ListMembersRequest{})
		if err == nil {
			return membersOf(resp)
		}
	}
	return nil
}

// AddMember adds a coordinator that runs at an address, or gives a non-voter its vote. A voter votes as soon as it has caught
// up. It fails with a [gateway.UnknownOutcomeError] if it may be done or not, as do all changes of members.
func (a *Admin) AddMember(ctx context.Context, id, address string, nonVoter bool) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.change(ctx, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) error {
		_, err := cluster.AddMember(ctx, &rollcallv1.AddMemberRequest{Id: id, Address: address, NonVoter: nonVoter}, opts...)
		return err
	})
}

// RemoveMember removes a coordinator from the cluster. Its process goes on until it is stopped.
func (a *Admin) RemoveMember(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.change(ctx, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) error {
		_, err := cluster.RemoveMember(ctx, &rollcallv1.RemoveMemberRequest{Id: id}, opts...)
		return err
	})
}

// transferWatch is how long after a transfer the new leader is awaited: several elections.
const transferWatch = 3 * time.Second

// Transfer hands the leadership to the coordinator with the id to, or, if that is empty, to the one furthest ahead of those
// that keep up. It returns the new leader once that leads, and false if it led before. It fails if another coordinator comes to
// lead than the one that was named.
func (a *Admin) Transfer(ctx context.Context, to string) (leader gateway.Leader, transferred bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	before, err := a.client.Leader(ctx)
	if err != nil || before.Node == to {
		return before, false, err
	}
	err = a.change(ctx, func(ctx context.Context, cluster rollcallv1.ClusterServiceClient, opts ...grpc.CallOption) error {
		_, err := cluster.TransferLeadership(ctx, &rollcallv1.TransferLeadershipRequest{To: to}, opts...)
		return err
	})
	unknown, gaveUp := errors.AsType[*gateway.UnknownOutcomeError](err)
	if err != nil && !gaveUp {
		return before, false, err
	}
	// Raft gives up after an election's time on a transfer that may still happen: what counts is who leads.
	watching, cancel := context.WithTimeout(ctx, transferWatch)
	defer cancel()
	for l := range a.client.Leaders(watching) {
		switch {
		case l.Epoch <= before.Epoch:
		case to != "" && l.Node != to:
			return l, true, fmt.Errorf("%s leads, epoch %d", l.Node, l.Epoch)
		default:
			return l, true, nil
		}
	}
	cause := "it handed over"
	if gaveUp {
		cause = unknown.Cause
	}
	return before, false, &gateway.UnknownOutcomeError{
		Cause: fmt.Sprintf("%s leads as far as is known, epoch %d, and may hand over yet (%s); if it stays the leader, repeat the transfer", before.Node, before.Epoch, cause),
		Err:   err,
	}
}
