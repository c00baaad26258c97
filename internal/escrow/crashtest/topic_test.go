package crashtest

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// arrival is a message that the topic has accepted.
type arrival struct {
	*pubsubpb.PubsubMessage
	at time.Time
	by string // the instance that sent it
}

// topic is Google's fake, with an endpoint for each instance.
type topic struct {
	fake *pstest.Server

	mu       sync.Mutex
	arrivals []arrival
}

func newTopic(t *testing.T) *topic {
	t.Helper()
	p := &topic{fake: pstest.NewServer()}
	t.Cleanup(func() { require.NoError(t, p.fake.Close()) })
	return p
}

// all returns what the topic has accepted, in order.
func (p *topic) all() []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.arrivals)
}

// since returns the messages that the topic has accepted since a time.
func (p *topic) since(at time.Time) map[string]bool {
	list := map[string]bool{}
	for _, a := range p.all() {
		if a.at.After(at) {
			list[string(a.Data)] = true
		}
	}
	return list
}

// endpoint is the way of one instance to the topic.
type endpoint struct {
	pubsubpb.PublisherServer
	t     *testing.T
	topic *topic
	by    string
	addr  string

	server *grpc.Server // nil while it is closed
	served chan error

	release  chan struct{} // not nil: answers are withheld until it is closed; guarded by the topic's mutex
	withheld int           // messages without an answer since then; guarded by the topic's mutex
}

func (p *topic) endpoint(t *testing.T, by string) *endpoint {
	t.Helper()
	e := &endpoint{PublisherServer: &p.fake.GServer, t: t, topic: p, by: by, addr: "127.0.0.1:0"}
	e.open()
	t.Cleanup(e.close)
	return e
}

func (e *endpoint) open() {
	e.t.Helper()
	l, err := net.Listen("tcp", e.addr)
	require.NoError(e.t, err)
	server, served := grpc.NewServer(), make(chan error, 1)
	pubsubpb.RegisterPublisherServer(server, e)
	go func() { served <- server.Serve(l) }()
	e.addr, e.server, e.served = l.Addr().String(), server, served
}

// close closes the port and, after their answers, all connections. It may be called again.
func (e *endpoint) close() {
	if e.server != nil {
		e.answer()
		e.server.GracefulStop()
		require.NoError(e.t, <-e.served)
		e.server = nil
	}
}

// withhold withholds the answers from now on.
func (e *endpoint) withhold() {
	e.topic.mu.Lock()
	defer e.topic.mu.Unlock()
	e.release, e.withheld = make(chan struct{}), 0
}

// unanswered returns how many messages have been accepted without an answer since withhold.
func (e *endpoint) unanswered() int {
	e.topic.mu.Lock()
	defer e.topic.mu.Unlock()
	return e.withheld
}

// answer ends withhold.
func (e *endpoint) answer() {
	e.topic.mu.Lock()
	defer e.topic.mu.Unlock()
	if e.release != nil {
		close(e.release)
		e.release = nil
	}
}

// Publish implements the service.
func (e *endpoint) Publish(ctx context.Context, req *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	answer, release, err := e.accept(ctx, req)
	if release != nil {
		select {
		case <-release:
		case <-ctx.Done():
		}
	}
	return answer, err
}

func (e *endpoint) accept(ctx context.Context, req *pubsubpb.PublishRequest) (answer *pubsubpb.PublishResponse, release <-chan struct{}, err error) {
	e.topic.mu.Lock()
	defer e.topic.mu.Unlock()
	if answer, err = e.PublisherServer.Publish(ctx, req); err != nil {
		return nil, nil, err
	}
	for _, m := range req.Messages {
		e.topic.arrivals = append(e.topic.arrivals, arrival{m, time.Now(), e.by})
	}
	if e.release != nil {
		e.withheld += len(req.Messages)
	}
	return answer, e.release, nil
}
