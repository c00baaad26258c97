package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"

	"github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// topicProject and topicID name the topic of all measurements.
const topicProject, topicID = "rollcall-bench", "settlement.events.v1"

// topic is the process that messages are published to: Google's fake of Pub/Sub. It records what it accepts.
type topic struct {
	process  *proc.Process
	emulator string // address
	control  string // URL
}

func (t *trial) startTopic() *topic {
	program, err := os.Executable()
	t.check(err)
	addrs := t.addresses(2)
	process := t.start(t.TempDir(), nil, "listening", program, "topic", addrs[0], addrs[1])
	return &topic{process: process, emulator: addrs[0], control: "http://" + addrs[1]}
}

// published is what a topic has accepted so far.
type published struct {
	Messages int
	// Disordered are those whose sequence is not the next one of their escrow.
	Disordered  int
	First, Last time.Time
	// Pending is when the first pending message of each block came, by the block's number.
	Pending map[uint64]time.Time
}

// published returns what was accepted.
func (p *topic) published(t *trial) (got published) {
	t.check(json.Unmarshal(t.get(p.control), &got))
	return got
}

// await returns what was accepted, once that is at least n messages.
func (p *topic) await(t *trial, n int) (got published) {
	for moved := time.Now(); ; t.pause(20 * time.Millisecond) {
		before := got.Messages
		if got = p.published(t); got.Messages >= n {
			return got
		}
		if got.Messages > before {
			moved = time.Now()
		} else if time.Since(moved) > minedLimit {
			t.Fatalf("the topic has %d of %d messages, and no more came for %s", got.Messages, n, minedLimit)
		}
	}
}

// topicRecord is a reactor of the fake: it sees each request under the fake's lock, so in the order in which the topic accepts them.
type topicRecord struct {
	mu       sync.Mutex // guards the rest
	seen     published
	sequence map[string]int64 // the latest one by ordering key
}

// React implements [pstest.Reactor].
func (r *topicRecord) React(req any) (handled bool, ret any, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.seen.Messages == 0 {
		r.seen.First = now
	}
	r.seen.Last = now
	for _, m := range req.(*pubsubpb.PublishRequest).GetMessages() {
		r.seen.Messages++
		sequence, err := strconv.ParseInt(m.GetAttributes()["sequence"], 10, 64)
		if last := r.sequence[m.GetOrderingKey()]; err != nil || sequence != last+1 {
			r.seen.Disordered++
		}
		r.sequence[m.GetOrderingKey()] = sequence
		if m.GetAttributes()["status"] == "pending" {
			r.pending(m.GetData(), now)
		}
	}
	return false, nil, nil
}

func (r *topicRecord) pending(data []byte, at time.Time) {
	var message struct {
		Block uint64 `json:"block_number"`
	}
	if err := json.Unmarshal(data, &message); err != nil {
		return // its block has no message, which is found later
	}
	if _, again := r.seen.Pending[message.Block]; !again {
		r.seen.Pending[message.Block] = at
	}
}

// serveTopic serves a topic, and its record.
func serveTopic(ctx context.Context, emulator, control string) error {
	record := &topicRecord{sequence: make(map[string]int64), seen: published{Pending: make(map[uint64]time.Time)}}
	server := pstest.NewServerWithAddress(emulator, pstest.ServerReactorOption{FuncName: "Publish", Reactor: record})
	defer server.Close()
	name := fmt.Sprintf("projects/%s/topics/%s", topicProject, topicID)
	if _, err := server.GServer.CreateTopic(ctx, &pubsubpb.Topic{Name: name}); err != nil {
		return err
	}
	controls, err := net.Listen("tcp", control)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "listening")
	page := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		record.mu.Lock()
		defer record.mu.Unlock()
		_ = json.NewEncoder(w).Encode(record.seen)
	})}
	defer context.AfterFunc(ctx, func() { page.Close() })()
	return page.Serve(controls)
}
