package main

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/limits"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// guardFlags are a relayer's limits and key monitor.
type guardFlags struct {
	Rate       string `name:"rate-limit" env:"RELAYER_RATE_LIMIT" default:"1000:3000" placeholder:"N[:BURST]" help:"Transactions a second that this process takes, and at once after a pause; 0 for any number. As many calls of nodes, and signatures, come on top."`
	CallerRate string `name:"rate-limit-per-key" env:"RELAYER_RATE_LIMIT_PER_KEY" default:"0" placeholder:"N[:BURST]" help:"The same for each API key."`
	TraderRate string `name:"rate-limit-per-trader" env:"RELAYER_RATE_LIMIT_PER_TRADER" default:"0" placeholder:"N[:BURST]" help:"The same for each trader that requests name."`

	CallerBudget string `name:"budget-per-api-key" env:"RELAYER_BUDGET_PER_API_KEY" default:"0" placeholder:"WEI" help:"Gas that each API key may spend in a day (UTC), in all processes of the pool, which must have the same budgets; 0 for any."`
	TraderBudget string `name:"budget-per-trader" env:"RELAYER_BUDGET_PER_TRADER" default:"0" placeholder:"WEI" help:"The same for each trader."`
	KeyBudget    string `name:"budget-per-relayer" env:"RELAYER_BUDGET_PER_RELAYER" default:"0" placeholder:"WEI" help:"The same for each key of the pool; past it the others are used."`

	Interval                 time.Duration `name:"balance-interval" env:"RELAYER_BALANCE_INTERVAL" default:"5s" min:"100ms" max:"30s" help:"How often the keys' balances are read."`
	Margin                   int           `name:"min-balance-margin" env:"RELAYER_MIN_BALANCE_MARGIN" default:"20" min:"1" max:"1000" help:"Percent above its lowest balance at which a disabled key is enabled again."`
	MaxConsecutiveRejections int           `name:"max-consecutive-rejections" env:"RELAYER_MAX_CONSECUTIVE_REJECTIONS" default:"5" min:"1" max:"1000000" help:"Transactions of a key that nodes refuse in a row, for want of funds or for good, before it is disabled."`
	KeyDisabledFor           time.Duration `name:"key-disabled-for" env:"RELAYER_KEY_DISABLED_FOR" default:"1m" min:"1s" max:"30m" help:"Initial duration of a disablement."`

	NonceJump  uint64        `name:"max-nonce-jump" env:"RELAYER_MAX_NONCE_JUMP" default:"64" min:"1" max:"1000000" help:"How many transactions of a key more than it was given out nodes may count before the key is stopped until an operator acts."`
	StuckAfter time.Duration `name:"stuck-after" env:"RELAYER_STUCK_AFTER" default:"5m" min:"10s" max:"24h" help:"How long a key may wait for its lowest nonce before it gets nothing new, and how long bytes that nodes refuse are offered; some blocks of the chain."`
	Noops      int           `name:"noops-per-hour" env:"RELAYER_NOOPS_PER_HOUR" default:"64" min:"1" max:"1000000" help:"Nonces of a key without a transaction that are filled with no-ops in an hour."`

	TopUp topUpFlags `embed:"" prefix:"topup-"`
}

// topUpFlags are how keys that run dry get ether.
type topUpFlags struct {
	Key       string `env:"RELAYER_TOPUP_KEY" placeholder:"KEY" secret:"" help:"Private key that keys are topped up from; better in a file. It sends no other transactions."`
	KeyFile   string `name:"key-file" env:"RELAYER_TOPUP_KEY_FILE" placeholder:"FILE" help:"File that holds it."`
	Threshold string `env:"RELAYER_TOPUP_THRESHOLD" default:"0" placeholder:"WEI" help:"Balance below which a key is topped up."`
	Target    string `env:"RELAYER_TOPUP_TARGET" default:"0" placeholder:"WEI" help:"Balance that it gets then."`
	Most      string `name:"max" env:"RELAYER_TOPUP_MAX" default:"0" placeholder:"WEI" help:"Most that one top-up gives; 0: no limit."`
	PerDay    string `name:"max-per-day" env:"RELAYER_TOPUP_MAX_PER_DAY" default:"0" placeholder:"WEI" help:"Most that all of a day (UTC) give, in all processes of the pool: needed with a key."`

	signer signer.Signer // of Key, made by checkKey; nil for none
}

// check also knows the lowest balance; nil for none.
func (g *guardFlags) check(p *config.Problems, ring *signer.Ring, least *big.Int) {
	for _, field := range []*string{&g.Rate, &g.CallerRate, &g.TraderRate} {
		if _, err := ratelimit.ParseRate(*field); err != nil {
			p.Addf(field, "give a number, or two as in 100:300", "%v", err)
		}
	}
	for _, field := range []*string{&g.CallerBudget, &g.TraderBudget, &g.KeyBudget} {
		checkWei(p, field)
	}
	enough := new(big.Int)
	if least != nil {
		enough.Mul(least, big.NewInt(int64(100+g.Margin)))
		enough.Div(enough.Add(enough, big.NewInt(99)), big.NewInt(100))
	}
	g.TopUp.check(p, ring, least, enough)
}

// check knows the lowest balance, below which a key spends nothing any more, and what enables it again; ring is nil where the
// relayers' keys could not be read, or are in a keystore, which is opened later.
func (t *topUpFlags) check(p *config.Problems, ring *signer.Ring, least, enough *big.Int) {
	for _, field := range []*string{&t.Threshold, &t.Target, &t.Most, &t.PerDay} {
		checkWei(p, field)
	}
	if t.Key == "" {
		for _, field := range []*string{&t.Threshold, &t.Target, &t.Most, &t.PerDay} {
			if amount(*field) != nil && t.KeyFile == "" {
				p.Addf(field, "give RELAYER_TOPUP_KEY_FILE, the key that pays for top-ups", "has no effect without a top-up key")
			}
		}
		return
	}
	if ring != nil && t.signer != nil {
		if _, err := ringWith(ring, t.signer); err != nil {
			p.Addf(cli.From(&t.Key, &t.KeyFile), "give a key of its own", "%v", err)
		}
	}
	threshold, target := amount(t.Threshold), amount(t.Target)
	switch {
	case threshold == nil:
		p.Addf(&t.Threshold, "give the balance below which a key is topped up", "is missing")
	case least != nil && threshold.Cmp(least) < 0:
		p.Addf(&t.Threshold, "give RELAYER_MIN_BALANCE or more", "%q is below the lowest balance: a key that is disabled for that never gets there", t.Threshold)
	case target == nil || target.Cmp(threshold) <= 0:
		p.Addf(&t.Target, "give more than the threshold", "%q is not above the threshold", t.Target)
	case target.Cmp(enough) < 0:
		p.Addf(&t.Target, fmt.Sprintf("give %s or more", enough), "%q does not enable a key again that was below its lowest balance", t.Target)
	}
	if amount(t.PerDay) == nil {
		p.Addf(&t.PerDay, "give a ceiling", "is missing")
	}
}

// checkWei wants an amount.
func checkWei(p *config.Problems, field *string) {
	if n, ok := new(big.Int).SetString(*field, 10); !ok || n.Sign() < 0 || n.BitLen() > 256 {
		p.Addf(field, "give wei, in decimal digits", "%q is not an amount", *field)
	}
}

// amount is one that was checked; nil for 0, which stands for none.
func amount(s string) *big.Int {
	n, ok := new(big.Int).SetString(s, 10)
	if !ok || n.Sign() == 0 {
		return nil
	}
	return n
}

func (g *guardFlags) rates() (r limits.Rates) {
	for field, rate := range map[*string]*ratelimit.Rate{&g.Rate: &r.Global, &g.CallerRate: &r.Caller, &g.TraderRate: &r.Trader} {
		*rate, _ = ratelimit.ParseRate(*field) // which check has seen
	}
	return r
}

func (g *guardFlags) budgets() store.Budgets {
	return store.Budgets{Caller: amount(g.CallerBudget), Trader: amount(g.TraderBudget), Key: amount(g.KeyBudget)}
}

// checkKey reads the funding key, which the allow-list is about as well.
func (t *topUpFlags) checkKey(p *config.Problems) {
	if cli.ReadSecret(p, &t.Key, &t.KeyFile); t.Key == "" {
		return
	}
	key := cli.From(&t.Key, &t.KeyFile)
	own, err := signer.Load(context.Background(), signer.Source{Environ: []string{
		signer.VarKeyPrefix + "0=" + t.Key, signer.VarAllowed + "=" + os.Getenv(signer.VarAllowed),
	}})
	if wrong, ok := errors.AsType[*signer.Error](err); ok {
		for _, one := range wrong.Problems {
			if !strings.HasPrefix(one.Where, signer.VarAllowed) { // which is told with the relayers' keys
				p.Addf(key, "", "%s", one.What)
			}
		}
		return
	} else if err != nil {
		p.Addf(key, "", "%v", err)
		return
	}
	t.signer, _ = own.Signer(own.Addresses()[0])
}

// config says how keys are topped up; nil for not at all.
func (t *topUpFlags) config(maxFee *big.Int) *keymonitor.TopUp {
	if t.signer == nil {
		return nil
	}
	return &keymonitor.TopUp{
		From: t.signer.Address(), Threshold: amount(t.Threshold), Target: amount(t.Target), Most: amount(t.Most), PerDay: amount(t.PerDay), MaxFee: maxFee,
	}
}

// ringWith is a ring with one more key.
func ringWith(ring *signer.Ring, more signer.Signer) (*signer.Ring, error) {
	if more == nil {
		return ring, nil
	}
	signers := []signer.Signer{more}
	for _, address := range ring.Addresses() {
		s, _ := ring.Signer(address)
		signers = append(signers, s)
	}
	both, err := signer.New(signers...)
	if err != nil {
		return nil, fmt.Errorf("the funding key must not be a relayer's: %w", err)
	}
	return both, nil
}
