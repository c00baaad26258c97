package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dev/devchain"
	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/process"
)

// chainCmd runs an EVM chain for development until it is told to stop.
type chainCmd struct {
	Listen    string           `default:"127.0.0.1:8545" help:"Address of its JSON-RPC endpoint, HTTP and websocket; every process that reaches it may send transactions."`
	Fund      []string         `placeholder:"ADDRESS" help:"Accounts that have a million ether from the start."`
	BlockTime time.Duration    `default:"1s" min:"10ms" max:"1h" help:"Time between two blocks; under a second the chain's clock runs ahead."`
	GasLimit  uint64           `placeholder:"GAS" help:"Gas that fits into a block; 60 million by default."`
	Modules   []string         `default:"eth,net,web3,txpool" placeholder:"NAME" help:"JSON-RPC namespaces; debug lets callers rewind the chain."`
	Escrows   time.Duration    `name:"escrow-interval" default:"0s" max:"24h" placeholder:"DURATION" help:"Time between two escrows that it creates and settles for a demonstration; 0: none."`
	Log       process.LogFlags `embed:"" prefix:"log-"`
}

// Check reports what is wrong with the settings together.
func (c *chainCmd) Check(p *config.Problems) {
	cli.CheckListen(p, &c.Listen, "127.0.0.1:8545")
	for _, a := range c.Fund {
		if !common.IsHexAddress(a) {
			p.Addf(&c.Fund, "give 0x and 40 hexadecimal digits", "%q is not an address", a)
		}
	}
}

// Run runs the chain until ctx ends.
func (c *chainCmd) Run(ctx context.Context, con *cli.Console) error {
	return process.Role{Name: "dev chain", Log: c.Log, Stderr: con.Stderr}.Run(ctx, c.start)
}

// start opens the chain, which serves HTTP itself, and starts its stages.
func (c *chainCmd) start(p *process.Process) error {
	cfg := devchain.Config{Listen: c.Listen, Modules: c.Modules, BlockTime: c.BlockTime, GasLimit: c.GasLimit, Log: p.Log}
	cfg.Fund = append(cfg.Fund, crypto.PubkeyToAddress(erc2771.Deployer().PublicKey), crypto.PubkeyToAddress(escrowchain.Deployer().PublicKey))
	for _, a := range c.Fund {
		cfg.Fund = append(cfg.Fund, common.HexToAddress(a))
	}
	chain, err := devchain.Open(cfg)
	if err != nil {
		return err
	}
	p.OnStop("node", 0, chain.Close)
	p.Started("url", chain.URL(), "websocket", chain.WSURL(), "listen", chain.Addr(),
		"chain", devchain.ChainID, "genesis", chain.Genesis().Hex(), "funded", len(c.Fund))
	p.Go("blocks and contracts", 0, chain.Run, func(ctx context.Context) error {
		err := createContracts(ctx, chain, p.Log)
		if err == nil && c.Escrows > 0 {
			settleEscrows(ctx, chain, c.Escrows, p.Log)
		}
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
	return nil
}

// createContracts creates the contracts of the development cluster.
func createContracts(ctx context.Context, chain *devchain.Chain, log *slog.Logger) error {
	var creations errgroup.Group // each has an account of its own, so they need not wait for each other's blocks
	creations.Go(func() error { return erc2771.Deploy(ctx, chain.Client()) })
	creations.Go(func() error {
		_, err := escrowchain.DeployFactory(ctx, chain.Client(), escrowchain.Deployer())
		return err
	})
	if err := creations.Wait(); err != nil {
		return err
	}
	forwarder, recipient := erc2771.Addresses()
	log.Info("contracts created", "forwarder", forwarder.Hex(), "recipient", recipient.Hex(), "escrow_factory", escrowchain.FactoryAddress().Hex())
	return nil
}

// settleEscrows creates and settles an escrow each interval, until ctx ends.
func settleEscrows(ctx context.Context, chain *devchain.Chain, interval time.Duration, log *slog.Logger) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for number := 0; ; number++ {
		escrow, err := escrowchain.Demo(ctx, chain.Client(), escrowchain.FactoryAddress(), number)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("escrow not settled", "err", err)
		default:
			log.Debug("escrow created and settled", "escrow", escrow.Hex())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
