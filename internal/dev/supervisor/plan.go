package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/ethclient"

	"github.com/rollcall-dev/rollcall/internal/dev/devchain"
	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
)

const (
	gatewayID  = "gateway"
	chainID    = "chain"
	postgresID = "postgres"
	redisID    = "redis"
	pubsubID   = "pubsub"

	// pubsubProject and pubsubTopic are the names of the topic at the fake.
	pubsubProject = "rollcall-dev"
	pubsubTopic   = "settlement.events.v1"
	// demoInterval is the time between two escrows of the demonstration.
	demoInterval = "10s"

	// poolID is the relayers' default.
	poolID = "pool"
	// confirmations are few, because this chain's history does not change.
	confirmations = 2
)

// kind is the kind of a member.
type kind string

const (
	kindRedis       kind = "redis"
	kindPostgres    kind = "postgres"
	kindChain       kind = "chain"
	kindCoordinator kind = "coordinator"
	kindRelayer     kind = "relayer"
	kindGateway     kind = "gateway"
	kindAPI         kind = "api"
	kindConsumer    kind = "consumer"
	kindEscrow      kind = "escrow"
	kindPubSub      kind = "pubsub"
)

// stages are the steps of a start: the members to start, in this order, and the members that must serve before the next
// step. Redis starts in a moment, and all others look for it. The coordinators elect while PostgreSQL and the chain start, which relayers need. The gateway starts when the
// relayers are healthy, because one that it finds unhealthy has to wait for its next check.
var stages = []struct{ started, awaited []kind }{
	{started: []kind{kindRedis}, awaited: []kind{kindRedis}},
	{started: []kind{kindCoordinator, kindChain, kindPostgres, kindPubSub}, awaited: []kind{kindPostgres, kindChain, kindPubSub}},
	{started: []kind{kindRelayer, kindAPI, kindConsumer, kindEscrow}, awaited: []kind{kindRelayer, kindCoordinator}},
	{started: []kind{kindGateway}, awaited: []kind{kindGateway, kindAPI, kindConsumer, kindEscrow}},
}

// member is a process of the cluster, running or not.
type member struct {
	id     string
	kind   kind
	launch func(context.Context) (process, error)
	ready  func(context.Context) error // returns nil if the member serves

	run *run // the last one; nil before the first
}

func (m *member) pid() int {
	if m.run == nil || !m.run.running() {
		return 0
	}
	return m.run.pid()
}

// plan returns the members, in the order in which they are listed. Their settings are flags, which override the user's
// environment. Secrets are in files or variables, because all users can list the flags of processes.
func (s *supervisor) plan() []*member {
	all := []*member{
		// launch returns when it answers.
		{id: postgresID, kind: kindPostgres, launch: s.database.start, ready: func(context.Context) error { return nil }},
		s.chain(),
		s.pubsub(),
	}
	if s.redisServer != "" {
		all = append(all, s.redis(s.redisServer))
	}
	for i, port := range s.ports.Relayer {
		all = append(all, s.child(s.cfg.Rollcall, relayerID(i), kindRelayer, "http://"+local(port)+"/health", []string{s.secrets.variable()},
			"relayer", "--listen", local(port), "--pool-id", poolID, "--api-keys-file", s.secrets.relayerKeysFile(i),
			"--webhook-targets-file", s.secrets.webhooksFile(), "--webhook-allow-private",
			"--database-url-file", s.secrets.databaseURLFile(), "--chain-id", fmt.Sprint(devchain.ChainID),
			"--rpc-urls", "ws://"+local(s.ports.Chain), "--confirmations", fmt.Sprint(confirmations)))
	}
	redis := []string{"REDIS_URL=" + s.redisURL, "REDIS_KEY_PREFIX=" + s.cfg.KeyPrefix}
	all = append(all, s.relayPath(redis)...)
	all = append(all, s.monitors()...)
	var peers []string
	for i, port := range s.ports.Cluster {
		peers = append(peers, fmt.Sprintf("%s=%s", coordinatorID(i), local(port)))
	}
	for i := range nodes {
		id := coordinatorID(i)
		cluster, http := local(s.ports.Cluster[i]), local(s.ports.HTTP[i])
		all = append(all, s.child(s.cfg.Rollcall, id, kindCoordinator, "http://"+http+"/readyz", redis,
			"coordinator", "--node-id", id, "--peers", strings.Join(peers, ","),
			"--listen", cluster, "--advertise", cluster, "--advertise-client", cluster,
			"--http-listen", http, "--data-dir", filepath.Join(s.cfg.Data, id), "--raft-timing", "lan",
			"--relayer-count", "0", "--health-check-interval-ms", fmt.Sprint(s.cfg.Interval.Milliseconds())))
	}
	return append(all, s.child(s.cfg.Rollcall, gatewayID, kindGateway, "http://"+local(s.ports.Gateway)+"/healthz", nil,
		"gateway", "--id", gatewayID, "--coordinators", strings.Join(s.coordinators(), ","),
		"--definitions", filepath.Join(s.cfg.Data, "services"), "--listen", local(s.ports.Gateway),
		"--state-dir", filepath.Join(s.cfg.Data, gatewayID), "--startup-wait", "0s")) // no other process has advertised here before
}

// relayPath returns the APIs and consumers. The webhooks of relayers go to each API, so that the other one gets them while one
// is down.
func (s *supervisor) relayPath(redis []string) (all []*member) {
	forwarder, _ := erc2771.Addresses()
	for i, port := range s.ports.API {
		all = append(all, s.child(s.cfg.Rollcall, apiID(i), kindAPI, "http://"+local(port)+"/ready", redis,
			"api", "--listen", local(port), "--api-keys-file", s.secrets.clientKeysFile(), "--webhook-secret-file", s.secrets.webhookSecretFile(),
			"--database-url-file", s.secrets.databaseURLFile(), "--forwarder", forwarder.Hex(), "--chain-id", fmt.Sprint(devchain.ChainID),
			"--rpc-urls", "ws://"+local(s.ports.Chain)))
	}
	for i, port := range s.ports.Consumer {
		all = append(all, s.child(s.cfg.Rollcall, consumerID(i), kindConsumer, "http://"+local(port)+"/ready", redis,
			"consumer", "--listen", local(port), "--relayer-key-file", s.secrets.consumerKeyFile(), "--database-url-file", s.secrets.databaseURLFile()))
	}
	return all
}

// chain returns the chain, which serves when the factory of escrows exists: an escrow monitor refuses a factory without code.
func (s *supervisor) chain() *member {
	node := local(s.ports.Chain)
	args := []string{"chain", "--listen", node, "--fund", s.secrets.Funded()}
	if !s.cfg.NoDemo {
		args = append(args, "--escrow-interval", demoInterval)
	}
	m := s.child(s.self, chainID, kindChain, "", nil, args...)
	m.ready = func(ctx context.Context) error {
		client, err := ethclient.DialContext(ctx, "http://"+node)
		if err != nil {
			return err
		}
		defer client.Close()
		code, err := client.CodeAt(ctx, escrowchain.FactoryAddress(), nil)
		if err == nil && len(code) == 0 {
			err = errors.New("the contracts do not exist yet")
		}
		return err
	}
	return m
}

// pubsub returns the fake of Pub/Sub.
func (s *supervisor) pubsub() *member {
	address := local(s.ports.PubSub)
	m := s.child(s.self, pubsubID, kindPubSub, "", nil, "pubsub", "--listen", address)
	m.ready = func(ctx context.Context) error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	return m
}

// monitors returns the instances of the escrow monitor.
func (s *supervisor) monitors() (all []*member) {
	for i, port := range s.ports.Escrow {
		all = append(all, s.child(s.cfg.Rollcall, escrowID(i), kindEscrow, "http://"+local(port)+"/health", nil,
			"escrow", "--listen", local(port), "--instance-id", escrowID(i), "--chain-id", fmt.Sprint(devchain.ChainID),
			"--rpc-url", "ws://"+local(s.ports.Chain), "--factory-address", escrowchain.FactoryAddress().Hex(),
			"--finality", fmt.Sprint(confirmations),
			"--database-url-file", s.secrets.databaseURLFile(), "--pubsub-emulator-host", local(s.ports.PubSub),
			"--pubsub-project-id", pubsubProject, "--pubsub-topic-id", pubsubTopic))
	}
	return all
}

// child returns a member that is a process of a program, and serves when a URL answers 200.
func (s *supervisor) child(program, id string, k kind, url string, variables []string, args ...string) *member {
	m := &member{id: id, kind: k, ready: answers(url)}
	m.launch = func(context.Context) (process, error) {
		return s.launcher.start(program, args, variables, s.logPath(m))
	}
	return m
}

func coordinatorID(i int) string { return fmt.Sprintf("coordinator-%d", i+1) }
func relayerID(i int) string     { return fmt.Sprintf("oz-relayer-%d", i) }
func apiID(i int) string         { return fmt.Sprintf("api-%d", i+1) }
func consumerID(i int) string    { return fmt.Sprintf("consumer-%d", i+1) }
func escrowID(i int) string      { return fmt.Sprintf("escrow-%d", i+1) }

func (s *supervisor) coordinators() []string {
	var addresses []string
	for _, port := range s.ports.Cluster {
		addresses = append(addresses, local(port))
	}
	return addresses
}

// webhookURLs returns the base URLs that the relayers send webhooks to.
func (s *supervisor) webhookURLs() (urls []string) {
	if len(s.cfg.WebhookURLs) > 0 {
		return s.cfg.WebhookURLs
	}
	for _, port := range s.ports.API {
		urls = append(urls, "http://"+local(port))
	}
	return urls
}

// answers returns a check that a URL answers 200.
func answers(url string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, res.Status)
		}
		return nil
	}
}

// publish writes dev.json for the first time. Every later change updates it.
func (s *supervisor) publish() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = true
	return s.writeInfo()
}

// writeInfo updates dev.json, unless it has not been published, or the cluster is being stopped, which removes the file
// in the end. The caller holds mu.
func (s *supervisor) writeInfo() error {
	if !s.published || s.stopping {
		return nil
	}
	pids := map[string]int{}
	for _, m := range s.members {
		pids[m.id] = m.pid()
	}
	node := local(s.ports.Chain)
	forwarder, recipient := erc2771.Addresses()
	info := devinfo.Info{
		RedisURL: s.redisURL, RedisPID: pids[redisID], KeyPrefix: s.cfg.KeyPrefix, PoolID: poolID,
		Chain: devinfo.Chain{
			RPCURL: "http://" + node, WSURL: "ws://" + node, ChainID: devchain.ChainID, PID: pids[chainID],
			Forwarder: forwarder.Hex(), Recipient: recipient.Hex(),
		},
		Contracts:   devinfo.Contracts{Factory: escrowchain.FactoryAddress().Hex()},
		PubSub:      devinfo.PubSub{EmulatorHost: local(s.ports.PubSub), Project: pubsubProject, Topic: pubsubTopic, PID: pids[pubsubID]},
		DatabaseURL: s.database.url(), DatabasePID: pids[postgresID],
		Gateways: []devinfo.Gateway{{ID: gatewayID, PID: pids[gatewayID], HTTP: "http://" + local(s.ports.Gateway)}},
	}
	for i := range nodes {
		id := coordinatorID(i)
		info.Coordinators = append(info.Coordinators, devinfo.Coordinator{ID: id, PID: pids[id], Cluster: local(s.ports.Cluster[i]), HTTP: "http://" + local(s.ports.HTTP[i])})
	}
	for i, port := range s.ports.Relayer {
		id := relayerID(i)
		info.Relayers = append(info.Relayers, devinfo.Relayer{ID: id, PID: pids[id], URL: "http://" + local(port), APIKey: s.secrets.apiKeys[i]})
	}
	for i, port := range s.ports.API {
		info.APIs = append(info.APIs, devinfo.API{ID: apiID(i), PID: pids[apiID(i)], URL: "http://" + local(port), APIKey: s.secrets.clientKey})
	}
	for i, port := range s.ports.Consumer {
		info.Consumers = append(info.Consumers, devinfo.Consumer{ID: consumerID(i), PID: pids[consumerID(i)], HTTP: "http://" + local(port)})
	}
	for i, port := range s.ports.Escrow {
		info.Escrows = append(info.Escrows, devinfo.Escrow{ID: escrowID(i), PID: pids[escrowID(i)], HTTP: "http://" + local(port)})
	}
	return writeJSON(filepath.Join(s.cfg.Data, devinfo.File), info)
}
