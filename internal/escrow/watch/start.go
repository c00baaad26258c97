package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

const (
	// startPause is the pause between two looks at the nodes during a start.
	startPause = time.Second
	// stragglers is how much longer than the first endpoint others may take to report their chain.
	stragglers = 2 * time.Second
)

// Start is what the nodes must have before a chain is read for the first time.
type Start struct {
	Client     *evm.Client
	Factories  []common.Address
	StartBlock uint64
	// Alone is that of a Config.
	Alone bool
	// Waiting is called with each cause of waiting, for pages that strangers may read.
	Waiting func(string)
	Logger  *slog.Logger
}

// Await returns nil once an endpoint has the chain and the start block, and the factories are contracts. It returns an error if all
// endpoints have another chain, or if two have no code for a factory, or one if no other is configured. While no endpoint answers, or the
// chain is shorter, it waits.
func (s Start) Await(ctx context.Context) error {
	var last string
	for {
		waiting, err := s.look(ctx)
		if err != nil || waiting == "" {
			return err
		}
		if waiting != last {
			s.Logger.Warn("waiting for the nodes", "component", "watcher", "cause", waiting)
		}
		last = waiting
		s.Waiting(waiting)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(startPause):
		}
	}
}

// CheckChain returns an error once all endpoints have another chain. It returns nil once one has the chain, or if ctx ends. It is for a
// chain that was read before: its other instances, and the messages that are stored, do not depend on the nodes.
func (s Start) CheckChain(ctx context.Context) error {
	for {
		right, err := s.rightChain(ctx)
		if err != nil || right {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(startPause):
		}
	}
}

// rightChain reports whether an endpoint has the chain.
func (s Start) rightChain(ctx context.Context) (bool, error) {
	var wrong []error
	anchors := s.Client.Anchors(ctx, 0, stragglers)
	for _, a := range anchors {
		if a.Err == nil {
			return true, nil
		}
		if e, ok := errors.AsType[*evm.WrongChainError](a.Err); ok {
			wrong = append(wrong, e)
		}
	}
	if len(wrong) == len(anchors) {
		return false, fmt.Errorf("no endpoint has the chain of CHAIN_ID, %d: correct it, or RPC_URL: %w", s.Client.ChainID(), errors.Join(wrong...))
	}
	return false, nil
}

// look returns what has to be waited for; "" for nothing.
func (s Start) look(ctx context.Context) (waiting string, err error) {
	right, err := s.rightChain(ctx)
	if err != nil {
		return "", err
	}
	if !right {
		return "no endpoint answers", nil
	}
	var head uint64
	names := s.Client.Endpoints("eth_getBlockByNumber")
	for _, name := range names {
		if h, _, err := s.Client.FinalOf(ctx, name, evm.Finality{}); err == nil {
			head = max(head, h.Number)
		}
	}
	if head < s.StartBlock {
		return fmt.Sprintf("the start block %d is after the newest block %d", s.StartBlock, head), nil
	}
	switch err := CheckFactories(ctx, s.Client, s.Factories, s.Alone); {
	case errors.Is(err, ErrUnconfirmed):
		return err.Error(), nil
	case err != nil:
		return "", fmt.Errorf("%w: correct FACTORY_ADDRESS, or CHAIN_ID and RPC_URL", err)
	}
	return "", nil
}

// ErrNoCode means that a factory is no contract.
var ErrNoCode = errors.New("the factory has no code")

// CheckFactories returns nil if an endpoint has code for each factory. It fails with [ErrNoCode] if two have none for one of them, or one
// with alone, that is, if no other is configured; and with [ErrUnconfirmed] if too few answer.
func CheckFactories(ctx context.Context, client *evm.Client, factories []common.Address, alone bool) error {
	for _, factory := range factories {
		var with, without []string
		for _, name := range client.Endpoints("eth_getCode") {
			switch has, err := client.HasCode(ctx, name, factory); {
			case err != nil:
			case has:
				with = append(with, name)
			default:
				without = append(without, name)
			}
		}
		switch {
		case len(with) > 0:
		case len(without) > 1 || len(without) == 1 && alone:
			return fmt.Errorf("%w: %s at %s", ErrNoCode, factory, strings.Join(without, " and "))
		default:
			return fmt.Errorf("%w: too few endpoints answer whether %s is a contract", ErrUnconfirmed, factory)
		}
	}
	return nil
}
