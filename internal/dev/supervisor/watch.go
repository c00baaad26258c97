package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/dev/devchain"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
)

// watch prints the banner and a line for every change, until ctx ends.
func (s *supervisor) watch(ctx context.Context) error {
	client, err := redisclient.New(redisclient.Options{URL: s.redisURL})
	if err != nil {
		return err
	}
	defer client.Close()
	control, err := s.listenControl(ctx)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.serveControl(ctx, control) })
	events := s.subscribe(ctx, client)
	s.awaitActive(ctx, client)
	if ctx.Err() != nil { // Ctrl-C, or the socket failed
		return g.Wait()
	}
	if err := s.publish(); err != nil {
		g.Go(func() error { return err })
		return g.Wait()
	}
	s.banner(ctx)
	g.Go(func() error { s.reportLeaders(ctx); return nil })
	g.Go(func() error { s.reportEvents(ctx, events); return nil })
	return g.Wait()
}

// patience is how long the relayers may take to become active before the user is told about the wait.
const patience = 15 * time.Second

// awaitActive waits until the relayers are in Redis, so that the banner's commands work, or until ctx ends.
func (s *supervisor) awaitActive(ctx context.Context, client redis.UniversalClient) {
	late := time.NewTicker(patience)
	defer late.Stop()
	for {
		active, err := client.SCard(ctx, s.activeKey("relayer")).Result()
		if err == nil && active >= relays {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		case <-late.C:
			cause := ""
			if err != nil {
				cause = fmt.Sprintf(" (%v)", err)
			}
			s.printf("waiting for the relayers: %d of %d are in %s%s; see %s", active, relays, s.activeKey("relayer"), cause, filepath.Join(s.cfg.Data, "logs"))
		}
	}
}

// activeKey returns the key of the set of live services of a kind.
func (s *supervisor) activeKey(kind string) string {
	return mirror.Keys{Prefix: s.cfg.KeyPrefix}.Active(kind)
}

// banner prints all addresses and some commands to try.
func (s *supervisor) banner(ctx context.Context) {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	leader := ""
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if l, err := s.client.Leader(limited); err == nil {
		leader = l.Node
	}
	p("")
	p("  Redis          %s", redacted(s.redisURL))
	for i := range nodes {
		note := ""
		if coordinatorID(i) == leader {
			note = "   leads"
		}
		p("  %s  %s   http://%s/status%s", coordinatorID(i), local(s.ports.Cluster[i]), local(s.ports.HTTP[i]), note)
	}
	p("  %s        http://%s", gatewayID, local(s.ports.Gateway))
	for i, port := range s.ports.Relayer {
		p("  %s   http://%s/health", relayerID(i), local(port))
	}
	for i, port := range s.ports.API {
		p("  %s          http://%s", apiID(i), local(port))
	}
	for i, port := range s.ports.Consumer {
		p("  %s     http://%s/health", consumerID(i), local(port))
	}
	for i, port := range s.ports.Escrow {
		p("  %s       http://%s/status", escrowID(i), local(port))
	}
	p("  Pub/Sub        %s, project %s, topic %s", local(s.ports.PubSub), pubsubProject, pubsubTopic)
	p("  chain          http://%s, id %d, a block a second, from the beginning", local(s.ports.Chain), devchain.ChainID)
	p("  PostgreSQL     %s, in %s", local(s.ports.Postgres), s.database.folder)
	p("  data           %s", s.cfg.Data)
	p("")
	p("Each relayer is checked every %v. In another terminal, try:", s.cfg.Interval)
	p("")
	p("  %s SMEMBERS %s", s.redisCLI(), s.activeKey("relayer"))
	p("  %-44s # leaves the set within %v", s.hint("kill", "oz-relayer-1"), s.cfg.Interval)
	p("  %s", s.hint("start", "oz-relayer-1"))
	p("  %-44s # another leads, under a new epoch; no relayer leaves", s.hint("kill", "leader"))
	rollcall := filepath.Join(filepath.Dir(s.cfg.Command), filepath.Base(s.cfg.Rollcall))
	if s.cfg.Data == devinfo.DefaultData { // the default folder of the operator's commands
		p("  %s status", rollcall)
	} else {
		p("  %s status --coordinators %s", rollcall, strings.Join(s.coordinators(), ","))
	}
	p("  %s escrow events --follow", rollcall)
	p("  curl -s http://%s/status", local(s.ports.HTTP[0]))
	p("  curl -s http://%s/api/v1/relay/direct -H \"x-api-key: $(%s)\" \\", local(s.ports.API[0]), s.hint("api-key", apiID(0)))
	p("    -H 'Content-Type: application/json' -d '{\"to\": \"0x00000000000000000000000000000000000000aa\", \"value\": \"1\"}'")
	p("")
	p("Ctrl-C stops everything; the same command goes on from the same data, on a new chain.")
	p("")
	s.outMu.Lock()
	defer s.outMu.Unlock()
	fmt.Fprint(s.cfg.Out, b.String())
}

func (s *supervisor) redisCLI() string {
	if s.cfg.RedisURL == "" {
		return fmt.Sprintf("redis-cli -p %d", s.ports.Redis)
	}
	return "redis-cli -u " + redacted(s.redisURL)
}

// redacted returns a URL without its password.
func redacted(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(a URL that does not parse)"
	}
	return u.Redacted()
}

const (
	// leaderless is how long there may be no leader before that is reported: several times the duration of an election.
	leaderless = 2 * time.Second
	// leaderPoll is how often the leader is compared with the last reported one. The client holds it in memory.
	leaderPoll = 100 * time.Millisecond
)

// reportLeaders prints each new leader, the loss of the quorum, and its return, until ctx ends.
func (s *supervisor) reportLeaders(ctx context.Context) {
	var last gateway.Leader
	for lost := false; ctx.Err() == nil; {
		limited, cancel := context.WithTimeout(ctx, leaderless)
		l, err := s.client.Leader(limited)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && (l != last || lost):
			s.printf("%s leads, epoch %d", l.Node, l.Epoch)
			last, lost = l, false
		case err != nil && !lost:
			s.printf("no coordinator leads: %s", s.quorum())
			lost = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(leaderPoll):
		}
	}
}

// quorum returns how many coordinators run and how many are needed.
func (s *supervisor) quorum() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	running, down := 0, []string{}
	for m := range s.of([]kind{kindCoordinator}) {
		if m.pid() != 0 {
			running++
		} else {
			down = append(down, m.id)
		}
	}
	text := fmt.Sprintf("%d of %d coordinators run, %d are needed; until then nothing is registered, and the sets in Redis stay as they are",
		running, nodes, nodes/2+1)
	if len(down) > 0 {
		text += "; start one with: " + s.hint("start", down[0])
	}
	return text
}

// subscribe returns the events that the mirror publishes from now on.
func (s *supervisor) subscribe(ctx context.Context, client redis.UniversalClient) <-chan *redis.Message {
	sub := client.Subscribe(ctx, mirror.Keys{Prefix: s.cfg.KeyPrefix}.Events())
	context.AfterFunc(ctx, func() { _ = sub.Close() })
	return sub.Channel()
}

// reportEvents prints each service that joins or leaves the active set of its kind.
func (s *supervisor) reportEvents(ctx context.Context, events <-chan *redis.Message) {
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-events:
			if !ok {
				return
			}
			var e struct{ Type, ID, Kind, Reason string }
			if json.Unmarshal([]byte(m.Payload), &e) != nil {
				continue
			}
			switch e.Type {
			case "added":
				s.printf("%s joined %s", e.ID, s.activeKey(e.Kind))
			case "removed":
				s.printf("%s left %s: %s", e.ID, s.activeKey(e.Kind), e.Reason)
			}
		}
	}
}
