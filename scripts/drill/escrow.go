package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	topicProject = "projects/rollcall-dev"
	topicName    = topicProject + "/topics/settlement.events.v1"
	// settled is how many escrows must be created, settled and reported after a fault.
	settled = 3
	// takeover is the limit where an instance stops responding: its lease ends after 10 s, and its claims with it. The rest is for three
	// escrows, each of which takes two blocks and the pause between two escrows.
	takeover = 15*time.Second + settled*5*time.Second
)

var monitors = []string{"escrow-1", "escrow-2"}

// topic is a subscriber of the topic, which checks what it receives.
type topic struct {
	stop func()

	mu       sync.Mutex
	contents map[string]string  // by event and revision
	escrows  map[string]*escrow // by address
	repeated int
	problem  string // the first one
}

// escrow is what was received of an escrow.
type escrow struct {
	first   time.Time
	last    int64 // sequence
	settled bool
}

// subscribe follows the topic from now on.
func (d *drill) subscribe() *topic {
	address := strings.Join(d.inspect("{{range .NetworkSettings.Ports}}{{range .}}127.0.0.1:{{.HostPort}}{{end}}{{end}}", "pubsub"), "")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	d.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	client, err := pubsub.NewSubscriptionAdminClient(ctx, option.WithGRPCConn(conn))
	if err != nil {
		cancel()
		d.check(err)
	}
	_, err = client.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: topicProject + "/subscriptions/drill", Topic: topicName, EnableMessageOrdering: true, AckDeadlineSeconds: 60,
	})
	if err != nil {
		cancel()
		d.check(fmt.Errorf("subscribe to %s: %w", topicName, err))
	}
	t := &topic{contents: map[string]string{}, escrows: map[string]*escrow{}}
	var reading sync.WaitGroup
	reading.Go(func() { t.read(ctx, client, topicProject+"/subscriptions/drill") })
	t.stop = func() {
		cancel()
		reading.Wait()
		_ = client.Close() // nothing is written
	}
	return t
}

// read receives messages until ctx ends.
func (t *topic) read(ctx context.Context, client *pubsub.SubscriptionAdminClient, subscription string) {
	for ctx.Err() == nil {
		answer, err := client.Pull(ctx, &pubsubpb.PullRequest{Subscription: subscription, MaxMessages: 100})
		if err != nil {
			if code := status.Code(err); ctx.Err() == nil && code != codes.DeadlineExceeded {
				t.fail("pull: %v", err)
				return
			}
			continue
		}
		var ids []string
		for _, m := range answer.ReceivedMessages {
			t.record(m.Message)
			ids = append(ids, m.AckId)
		}
		if len(ids) == 0 {
			continue
		}
		if err := client.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: subscription, AckIds: ids}); err != nil && ctx.Err() == nil {
			t.fail("acknowledge: %v", err)
			return
		}
	}
}

func (t *topic) fail(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.problem == "" {
		t.problem = fmt.Sprintf(format, args...)
	}
}

// record checks a message: each sequence of an escrow follows the one before, and a repetition is identical. The first message of an escrow
// that began before the subscription may have any sequence.
func (t *topic) record(m *pubsubpb.PubsubMessage) {
	var message struct {
		EventID  string `json:"event_id"`
		Revision int    `json:"revision"`
		Sequence int64  `json:"sequence"`
		Type     string `json:"type"`
		Escrow   string `json:"escrow"`
	}
	if err := json.Unmarshal(m.Data, &message); err != nil {
		t.fail("message: %v", err)
		return
	}
	if m.OrderingKey != message.Escrow {
		t.fail("%s has the ordering key %s", message.Escrow, m.OrderingKey)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id := fmt.Sprint(message.EventID, "/", message.Revision)
	if before, ok := t.contents[id]; ok {
		if t.repeated++; before != string(m.Data) {
			t.problem = "repeated with other content: " + id
		}
		return
	}
	t.contents[id] = string(m.Data)
	e := t.escrows[message.Escrow]
	if e == nil {
		e = &escrow{first: time.Now(), last: message.Sequence - 1}
		t.escrows[message.Escrow] = e
	}
	if message.Sequence != e.last+1 && t.problem == "" {
		t.problem = fmt.Sprintf("%s: %d follows %d", message.Escrow, message.Sequence, e.last)
	}
	e.last = message.Sequence
	e.settled = e.settled || message.Type == "EscrowReleased" || message.Type == "EscrowRefunded"
}

// since returns how many escrows that began after a time were settled, or the problem.
func (t *topic) since(start time.Time) (n int, problem string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.escrows {
		if e.first.After(start) && e.settled {
			n++
		}
	}
	return n, t.problem
}

// followed has a fault happen and be undone, and prints rows about the escrows that the topic reports meanwhile.
func (d *drill) followed(t *topic, step string, limit time.Duration, fault, undo func()) {
	d.begin()
	fault()
	start := time.Now()
	expected := fmt.Sprintf("%d escrows settled, each in order", settled)
	d.awaitThat(step, expected, limit, func() (string, bool) {
		n, problem := t.since(start)
		if problem != "" {
			d.check(errors.New(problem))
		}
		return fmt.Sprintf("%d escrows settled", n), n >= settled
	})
	undo()
	d.await("  the monitor then", "all answer", time.Minute, func() string {
		for _, m := range monitors {
			if seen := d.answers(m, "http://127.0.0.1:9090/health"); seen != "answers" {
				return m + " " + seen
			}
		}
		return "all answer"
	})
}

// monitorSurvives breaks each instance of the escrow monitor, and the parts that it depends on, while escrows are created and settled.
func (d *drill) monitorSurvives() {
	t := d.subscribe()
	defer t.stop()
	nothing := func() {}
	do := func(command string, services ...string) func() { return func() { d.act(command, services...) } }
	d.followed(t, "escrows are created and settled", takeover, nothing, nothing)
	for _, m := range monitors {
		d.followed(t, "kill "+m, takeover, do("kill", m), do("start", m))
	}
	for _, m := range monitors {
		d.followed(t, "pause "+m, takeover, do("pause", m), do("unpause", m))
	}
	for _, m := range monitors {
		d.followed(t, "stop "+m, takeover, func() {
			d.act(stop, m)
			d.await("  its exit code", "[0]", 5*time.Second, func() string { return fmt.Sprint(d.inspect("{{.State.ExitCode}}", m)) })
		}, do("start", m))
	}
	d.followed(t, "cut escrow-1 off PostgreSQL and the chain", takeover, do("network disconnect "+project+"_relay", monitors[0]), do("network connect "+project+"_relay", monitors[0]))
	d.followed(t, "kill PostgreSQL for 3 s", takeover, func() {
		d.act("kill", "postgres")
		time.Sleep(3 * time.Second)
		d.each([]string{"postgres"}, "start")
	}, nothing)
	d.await("  the chain's events", "are those that were reported", 30*time.Second, func() string {
		var status struct{ Cursor struct{ Number uint64 } }
		d.check(json.Unmarshal([]byte(d.exec(monitors[0], "/rollcall", "escrow", "status", "-o", "json")), &status))
		d.exec(monitors[0], "/rollcall", "escrow", "verify", "--from", "1", "--to", fmt.Sprint(status.Cursor.Number))
		return "are those that were reported" // otherwise the command fails
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := cmp.Or(t.problem, fmt.Sprintf("%d messages, %d of them repeated", len(t.contents), t.repeated))
	d.row("  the topic", "no gap, and repetitions identical", seen, 0, t.problem == "")
}
