package publish_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// patience limits what a healthy machine does in a second.
const patience = 2 * time.Minute

const lane = "1337/topic"

// topic is Google's fake behind a server that a test can make fail. It keeps what was accepted, in order.
type topic struct {
	pubsubpb.PublisherServer // the fake's
	addr                     string

	mu       sync.Mutex
	before   func(*pubsubpb.PubsubMessage) error // an error refuses the message
	after    func(*pubsubpb.PubsubMessage) error // an error loses the answer
	accepted []*pubsubpb.PubsubMessage
	changed  chan struct{} // closed and replaced with each accepted one
}

func newTopic(t *testing.T) *topic {
	t.Helper()
	fake := pstest.NewServer()
	f := &topic{PublisherServer: &fake.GServer, changed: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f.addr = listener.Addr().String()
	server := grpc.NewServer()
	pubsubpb.RegisterPublisherServer(server, f)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
		require.NoError(t, fake.Close())
	})
	return f
}

func (f *topic) Publish(ctx context.Context, req *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	f.mu.Lock()
	before, after := f.before, f.after
	f.mu.Unlock()
	for _, m := range req.Messages {
		if before != nil {
			if err := before(m); err != nil {
				return nil, err
			}
		}
	}
	answer, err := f.PublisherServer.Publish(ctx, req)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.accepted = append(f.accepted, req.Messages...)
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	for _, m := range req.Messages {
		if after != nil {
			if err := after(m); err != nil {
				return nil, err
			}
		}
	}
	return answer, nil
}

// fail sets the faults of the topic.
func (f *topic) fail(before, after func(*pubsubpb.PubsubMessage) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// await returns the accepted messages once there are n.
func (f *topic) await(t *testing.T, n int) []*pubsubpb.PubsubMessage {
	t.Helper()
	limit := time.After(patience)
	for {
		f.mu.Lock()
		all, changed := slices.Clone(f.accepted), f.changed
		f.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%d of %d messages within %v", len(all), n, patience)
		}
	}
}

// open returns the topic as the product opens it.
func (f *topic) open(t *testing.T) *publish.Topic {
	t.Helper()
	opened, err := publish.OpenTopic(t.Context(), publish.TopicConfig{Project: "rollcall", Topic: "settlement.events.v1", Emulator: f.addr})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	require.NoError(t, opened.Create(t.Context()))
	require.NoError(t, opened.Create(t.Context()), "it exists")
	return opened
}

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)
}

// start runs a publisher until the test ends or stop is called.
func start(t *testing.T, db *pgxpool.Pool, to *publish.Topic, change ...func(*publish.Config)) (p *publish.Publisher, stop func()) {
	t.Helper()
	box, err := outbox.New(db, store.Outbox)
	require.NoError(t, err)
	cfg := publish.Config{Topic: to, Outbox: box, Lane: lane, Halted: store.Halted}
	for _, c := range change {
		c(&cfg)
	}
	p, err = publish.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return p, stop
}

// insert adds messages of escrows: from the first sequence to the last.
func insert(t *testing.T, db *pgxpool.Pool, first, last int, escrows ...common.Address) {
	t.Helper()
	box, err := outbox.New(db, store.Outbox)
	require.NoError(t, err)
	var entries []outbox.Entry
	for n := first; n <= last; n++ {
		for _, escrow := range escrows {
			m := events.Message{Envelope: events.Envelope{EventID: fmt.Sprintf("%x-%d", escrow[0], n), Revision: 1, Status: events.Final, Sequence: int64(n), Type: "Approved", ChainID: 1337, Escrow: escrow}}
			text, err := m.Encode()
			require.NoError(t, err)
			entries = append(entries, outbox.Entry{Lane: lane, Subject: lane + "/" + m.OrderingKey(), Partition: events.Partition(escrow), Payload: text})
		}
	}
	require.NoError(t, postgres.InTx(t.Context(), db, func(tx pgx.Tx) error { return box.Insert(t.Context(), tx, entries...) }))
}

// failing returns the waiting message with the most failures.
func failing(t *testing.T, db *pgxpool.Pool) outbox.Item {
	t.Helper()
	box, err := outbox.New(db, store.Outbox)
	require.NoError(t, err)
	list, err := box.List(t.Context(), outbox.Filter{State: outbox.Waiting})
	require.NoError(t, err)
	require.NotEmpty(t, list)
	return slices.MaxFunc(list, func(a, b outbox.Item) int { return cmp.Compare(a.Failures, b.Failures) })
}

// count returns the sum of a counter's values, or that of one value of its label.
func count(t *testing.T, reg *prometheus.Registry, name string, label ...string) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && (len(label) == 0 || m.Label[0].GetValue() == label[0]) {
				n += m.Counter.GetValue()
			}
		}
	}
	return n
}

func escrows(n int) (all []common.Address) {
	for i := range n {
		all = append(all, common.Address{byte(1 + i)})
	}
	return all
}

// inOrder requires that the messages of each escrow came in the order of their sequences, without gaps, and returns how many came again.
func inOrder(t *testing.T, messages []*pubsubpb.PubsubMessage) (again int) {
	t.Helper()
	last := map[string]int{}
	content := map[string]string{}
	for _, m := range messages {
		var n int
		_, err := fmt.Sscan(m.Attributes["sequence"], &n)
		require.NoError(t, err)
		id := m.Attributes["event_id"] + "/" + m.Attributes["revision"]
		if before, ok := content[id]; ok {
			require.Equal(t, before, string(m.Data))
			require.Equal(t, last[m.OrderingKey], n, "a repetition follows its first message")
			again++
			continue
		}
		content[id] = string(m.Data)
		require.Equal(t, last[m.OrderingKey]+1, n, "of %s", m.OrderingKey)
		require.Equal(t, m.Attributes["escrow"], m.OrderingKey)
		last[m.OrderingKey] = n
	}
	return again
}

// E12: two processes share the messages. Those of an escrow come in order, once.
func TestPublisher_TwoProcesses_EachEscrowInOrderOnce(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	insert(t, db, 1, 5, escrows(20)...)
	for range 2 {
		start(t, db, f.open(t))
	}
	insert(t, db, 6, 10, escrows(20)...)
	messages := f.await(t, 200)
	require.Zero(t, inOrder(t, messages))
	require.Len(t, messages, 200)
}

// E12: a topic is so slow that it answers a request only once it has one of each escrow. All are in flight at a time, and each message comes
// once.
func TestPublisher_SlowTopic_AllEscrowsInFlight(t *testing.T) {
	t.Parallel()
	const n, each = 200, 4
	db, f := database(t), newTopic(t)
	var mu sync.Mutex
	waiting, answer := 0, make(chan struct{})
	f.fail(func(*pubsubpb.PubsubMessage) error {
		mu.Lock()
		mine := answer
		if waiting++; waiting == n {
			close(answer)
			waiting, answer = 0, make(chan struct{})
		}
		mu.Unlock()
		select {
		case <-mine:
		case <-t.Context().Done():
		}
		return nil
	}, nil)
	insert(t, db, 1, each, escrows(n)...)
	reg := prometheus.NewRegistry()
	p, _ := start(t, db, f.open(t), func(c *publish.Config) { c.Metrics = publish.NewMetrics(reg) })
	messages := f.await(t, n*each)
	require.Zero(t, inOrder(t, messages))
	require.Len(t, messages, n*each)
	require.NoError(t, p.Health())
	require.Zero(t, count(t, reg, "rollcall_escrow_publish_failures_total"))
}

// E13: a lost answer, and a refused key, repeat a message with the same content, before the next one of its escrow.
func TestPublisher_AnswersLost_RepeatsIdentically(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	var mu sync.Mutex
	seen := map[string]int{}
	nth := func(m *pubsubpb.PubsubMessage, salt string) int {
		mu.Lock()
		defer mu.Unlock()
		seen[salt+m.Attributes["event_id"]]++
		return seen[salt+m.Attributes["event_id"]]
	}
	f.fail(func(m *pubsubpb.PubsubMessage) error {
		if m.Attributes["sequence"] == "2" && nth(m, "key ") == 1 {
			return status.Error(codes.FailedPrecondition, "the ordering key is paused")
		}
		return nil
	}, func(m *pubsubpb.PubsubMessage) error {
		if m.Attributes["sequence"] == "3" && nth(m, "answer ") == 1 {
			return status.Error(codes.Aborted, "the answer is lost")
		}
		return nil
	})
	start(t, db, f.open(t))
	insert(t, db, 1, 4, escrows(5)...)
	messages := f.await(t, 5*4+5)
	require.Equal(t, 5, inOrder(t, messages))
}

// E14: a message that the topic refuses for good holds back its escrow alone, until an operator replays it.
func TestPublisher_RefusedForGood_HoldsBackItsEscrow(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	f.fail(func(m *pubsubpb.PubsubMessage) error {
		if m.Attributes["event_id"] == "1-2" {
			return status.Error(codes.InvalidArgument, "message too large")
		}
		return nil
	}, nil)
	start(t, db, f.open(t))
	insert(t, db, 1, 3, escrows(3)...)
	f.await(t, 7)
	box, err := outbox.New(db, store.Outbox)
	require.NoError(t, err)
	var dead []outbox.Item
	require.Eventually(t, func() bool {
		dead, err = box.List(t.Context(), outbox.Filter{State: outbox.Dead})
		return err == nil && len(dead) == 1
	}, patience, 10*time.Millisecond)
	require.Contains(t, dead[0].Reason, "message too large")
	require.Len(t, f.await(t, 7), 7)
	f.fail(nil, nil)
	n, err := box.Replay(t.Context(), outbox.Filter{IDs: []string{dead[0].ID}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Zero(t, inOrder(t, f.await(t, 9)))
}

// E14: a message that the topic fails without refusing it for good holds back its escrow alone, and is repeated until the topic accepts it.
func TestPublisher_OneMessageFails_OtherEscrowsGoOn(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Internal, codes.DeadlineExceeded, codes.Unavailable} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			db, f := database(t), newTopic(t)
			attempts := make(chan struct{}, 1000)
			f.fail(func(m *pubsubpb.PubsubMessage) error {
				if m.Attributes["event_id"] == "1-1" {
					attempts <- struct{}{}
					return status.Error(code, "this message alone")
				}
				return nil
			}, nil)
			insert(t, db, 1, 3, escrows(3)...)
			reg := prometheus.NewRegistry()
			start(t, db, f.open(t), func(c *publish.Config) { c.Metrics = publish.NewMetrics(reg) })
			for range 3 {
				<-attempts
			}
			insert(t, db, 4, 10, escrows(3)...)
			messages := f.await(t, 20)
			require.Zero(t, inOrder(t, messages))
			require.Len(t, messages, 20, "the third escrow waits")
			if code != codes.Unavailable {
				require.GreaterOrEqual(t, failing(t, db).Failures, 3, "each attempt is counted")
				require.Zero(t, count(t, reg, "rollcall_escrow_publish_failures_total", "away"), "the topic counts as away")
			}
			f.fail(nil, nil)
			require.Zero(t, inOrder(t, f.await(t, 30)))
		})
	}
}

// E13, E15: a topic that fails everything gets everything within seconds once it is back, however long it was away.
func TestPublisher_TopicFails_GetsAllSoonAfter(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	f.fail(func(*pubsubpb.PubsubMessage) error { return status.Error(codes.DeadlineExceeded, "no answer in time") }, nil)
	insert(t, db, 1, 2, escrows(2)...)
	p, _ := start(t, db, f.open(t))
	require.Eventually(t, func() bool { return p.Health() != nil }, patience, time.Millisecond)
	require.Eventually(t, func() bool {
		item := failing(t, db)
		return item.Failures >= 4 && item.DueAt.Sub(item.SettledAt.Time) <= 5*time.Second
	}, patience, 10*time.Millisecond)
	f.fail(nil, nil)
	require.Zero(t, inOrder(t, f.await(t, 4)))
	require.Eventually(t, func() bool { return p.Health() == nil }, patience, time.Millisecond)
}

// E15: a process whose topic is away gives back what it has claimed, and another one publishes it.
func TestPublisher_TopicAwayAtOneProcess_OthersPublish(t *testing.T) {
	t.Parallel()
	db, f, broken := database(t), newTopic(t), newTopic(t)
	broken.fail(func(*pubsubpb.PubsubMessage) error { return status.Error(codes.Unavailable, "no route") }, nil)
	p, _ := start(t, db, broken.open(t))
	insert(t, db, 1, 3, escrows(10)...)
	require.Eventually(t, func() bool { return p.Health() != nil }, patience, time.Millisecond)
	start(t, db, f.open(t))
	require.Zero(t, inOrder(t, f.await(t, 30)))
	broken.fail(nil, nil)
	insert(t, db, 4, 4, escrows(10)...)
	require.Eventually(t, func() bool { return p.Health() == nil }, patience, time.Millisecond)
}

// An emulator that is started again has lost the topic: it is created again.
func TestPublisher_EmulatorLosesTopic_CreatesItAgain(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	to := f.open(t)
	_, err := f.DeleteTopic(t.Context(), &pubsubpb.DeleteTopicRequest{Topic: "projects/rollcall/topics/settlement.events.v1"})
	require.NoError(t, err)
	start(t, db, to)
	insert(t, db, 1, 2, escrows(3)...)
	require.Zero(t, inOrder(t, f.await(t, 6)))
}

// E12: static partitions: a process claims its own alone.
func TestPublisher_Static_PublishesItsPartitions(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	all := escrows(20)
	insert(t, db, 1, 1, all...)
	want := 0
	for _, escrow := range all {
		if events.Partition(escrow)%3 == 1 {
			want++
		}
	}
	require.Positive(t, want)
	to := f.open(t)
	_, stop := start(t, db, to, func(c *publish.Config) { c.Total, c.Number = 3, 1 })
	for _, m := range f.await(t, want) {
		require.Equal(t, 1, events.Partition(common.HexToAddress(m.OrderingKey))%3)
	}
	stop()
	start(t, db, to)
	require.Len(t, f.await(t, 20), 20)
}

// Accepted messages are deleted after the retention. Later ones, those of other targets, and those that are not accepted stay.
func TestPublisher_Retention_DeletesAcceptedMessages(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	other := "1337/webhook/here"
	insert(t, db, 1, 2, escrows(3)...)
	_, err := db.Exec(t.Context(), `INSERT INTO escrow_outbox (lane, subject, payload, state) SELECT $1, $1, '', 'done'`, other)
	require.NoError(t, err)
	_, stop := start(t, db, f.open(t))
	f.await(t, 6)
	stop()
	insert(t, db, 3, 3, common.Address{9})
	_, err = db.Exec(t.Context(), `UPDATE escrow_outbox SET created_at = now() - interval '2 hours', settled_at = now() - interval '2 hours',
		due_at = CASE state WHEN 'waiting' THEN 'infinity' ELSE due_at END WHERE payload NOT LIKE '%"sequence":2,%'`)
	require.NoError(t, err)
	start(t, db, f.open(t), func(c *publish.Config) { c.Retention = time.Hour })
	left := func() (n int) {
		require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM escrow_outbox`).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return left() == 3+1+1 }, patience, 10*time.Millisecond)
	var accepted, others, waiting int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE payload LIKE '%"sequence":2,%'), count(*) FILTER (WHERE lane = $1),
		count(*) FILTER (WHERE state = 'waiting') FROM escrow_outbox`, other).Scan(&accepted, &others, &waiting))
	require.Equal(t, []int{3, 1, 1}, []int{accepted, others, waiting})
}

// The loop turns with nothing to do, and without the database.
func TestPublisher_Idle_Turns(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	p, _ := start(t, db, f.open(t))
	turns := func() {
		t.Helper()
		before := p.Turned()
		require.Eventually(t, func() bool { return p.Turned().After(before) }, patience, time.Millisecond)
	}
	turns()
	turns()
	db.Close()
	require.Eventually(t, func() bool { return p.Health() != nil }, patience, time.Millisecond)
	turns()
}

// E11: nothing leaves while the chain is halted.
func TestPublisher_Halted_PublishesNothing(t *testing.T) {
	t.Parallel()
	db, f := database(t), newTopic(t)
	halted, claimed := make(chan struct{}), make(chan struct{}, 100)
	insert(t, db, 1, 2, escrows(3)...)
	start(t, db, f.open(t), func(c *publish.Config) {
		c.Halted = func(outbox.Work) bool {
			select {
			case <-halted:
				return false
			default:
				claimed <- struct{}{}
				return true
			}
		}
	})
	<-claimed
	require.Empty(t, f.await(t, 0))
	close(halted) // an operator resumes it
	require.Zero(t, inOrder(t, f.await(t, 6)))
}

func TestOpenTopic_Invalid_NamesTheProblem(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]publish.TopicConfig{
		`project id "Rollcall"`:  {Project: "Rollcall", Topic: "settlement.events.v1"},
		`topic id "1"`:           {Project: "rollcall", Topic: "1"},
		"an emulator and an end": {Project: "rollcall", Topic: "settlement.events.v1", Emulator: "a:1", Endpoint: "b:1"},
	} {
		_, err := publish.OpenTopic(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
}
