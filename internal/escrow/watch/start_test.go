package watch

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// start returns the check of a start, and the causes of waiting.
func (m *monitor) startCheck(factories ...common.Address) (Start, chan string) {
	m.t.Helper()
	cfg := evm.Config{ChainID: testchain.ChainID, Timeout: 20 * time.Second}
	for _, p := range m.proxies {
		cfg.Endpoints = append(cfg.Endpoints, p.URL())
	}
	client, err := evm.Open(cfg)
	require.NoError(m.t, err)
	m.t.Cleanup(client.Close)
	causes := make(chan string, 1000)
	return Start{
		Client: client, Factories: factories, StartBlock: 1, Alone: len(m.proxies) == 1,
		Waiting: func(cause string) { causes <- cause }, Logger: slog.New(slog.DiscardHandler),
	}, causes
}

func answer(method, result string) proxy.Rule {
	return proxy.Rule{Methods: []string{method}, Fault: proxy.Fault{Kind: proxy.Answer, Result: result}}
}

// A factory counts as none if two endpoints have no code for it, or the only one.
func TestStart_FactoryWithoutCode_FailsByTwoEndpoints(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	start, _ := m.startCheck(m.factory)
	require.NoError(t, start.Await(t.Context()))
	m.proxies[0].SetRules(answer("eth_getCode", `"0x"`))
	require.NoError(t, start.Await(t.Context()), "the other endpoint has it")
	start, _ = m.startCheck(m.factory, common.Address{1})
	require.ErrorContains(t, start.Await(t.Context()), "the factory has no code: "+common.Address{1}.String()+" at 127.0.0.1:")
	m.proxies = m.proxies[:1]
	start, _ = m.startCheck(m.factory)
	require.ErrorContains(t, start.Await(t.Context()), "has no code: ")
}

// One endpoint of two that has no code decides nothing while the other one is away.
func TestStart_TooFewAnswers_Waits(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	m.proxies[0].SetRules(answer("eth_getCode", `"0x"`))
	m.proxies[1].SetRules(proxy.Rule{Fault: proxy.Fault{Kind: proxy.Cut}})
	start, causes := m.startCheck(m.factory)
	done := make(chan error, 1)
	go func() { done <- start.Await(t.Context()) }()
	require.Contains(t, <-causes, "too few endpoints answer whether "+m.factory.String())
	m.proxies[0].SetRules(proxy.Rule{Fault: proxy.Fault{Kind: proxy.Cut}})
	for cause := range causes {
		if cause == "no endpoint answers" {
			break
		}
	}
	for _, p := range m.proxies {
		p.SetRules()
	}
	require.NoError(t, <-done)
}

func TestStart_StartBlockAfterHead_WaitsForIt(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	start, causes := m.startCheck(m.factory)
	start.StartBlock = m.head() + 2
	done := make(chan error, 1)
	go func() { done <- start.Await(t.Context()) }()
	require.Contains(t, <-causes, "is after the newest block")
	m.chain.Commit()
	m.chain.Commit()
	require.NoError(t, <-done)
}

// All endpoints that answer have another chain: that is an error only if all answer.
func TestStart_WrongChain_FailsByAllEndpoints(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	wrong := answer("eth_chainId", `"0x5"`)
	m.proxies[0].SetRules(wrong)
	m.proxies[1].SetRules(proxy.Rule{Fault: proxy.Fault{Kind: proxy.Cut}})
	start, causes := m.startCheck(m.factory)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- start.Await(ctx) }()
	require.Equal(t, "no endpoint answers", <-causes)
	go func() { done <- start.CheckChain(ctx) }()
	m.proxies[1].SetRules(wrong)
	for range 2 {
		require.ErrorContains(t, <-done, "chain id is 5, not 1337")
	}
	cancel()
	start, _ = m.startCheck(m.factory)
	require.NoError(t, start.CheckChain(ctx), "it was told to stop")
}
