package safeguard

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/big"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/params"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// Chain is what a Keeper needs of the nodes.
type Chain interface {
	Balances(context.Context, []common.Address) ([]*big.Int, error)
	Fees(context.Context) (evm.Fees, error)
	TransferGas(ctx context.Context, from, to common.Address, fresh bool) uint64
}

// Config configures a Keeper. Fields without a default are required.
type Config struct {
	Store *store.Store
	Chain Chain
	Log   *slog.Logger
	// Outbox is where it announces what became of keys, to the store's targets.
	Outbox *webhook.Outbox
	// Describe shows a key as the API does.
	Describe func(*relayer.Key) openzeppelin.Relayer
	// Sign passes a top-up on to be signed and sent. Default: whoever follows the chain finds it after some seconds.
	Sign func(...*sender.Job)
	// Metrics, by default unregistered.
	Metrics *Metrics

	// Interval is how often balances are read. Default 5 s.
	Interval time.Duration
	// Margin is by how many percent of its lowest balance a key has to be above it to come back. Default 20.
	Margin int
	// Refusals is how many broadcasts of a key nodes have to refuse, for want of funds or for good, with none taken in
	// between, for it to be taken out; or how many signatures its signer has to fail to make. Default 5.
	Refusals int
	// Cooldown is how long it is out at first. Default 1 min.
	Cooldown time.Duration
	// TopUp, if not nil, is how keys are topped up.
	TopUp *TopUp
	// SwitchedOff stops new top-ups; those on their way go on. It is the relayer's kill switch.
	SwitchedOff bool
}

// TopUp says how keys are topped up.
type TopUp struct {
	From      common.Address // the funding key
	Threshold *big.Int       // wei: a key with less gets a top-up
	Target    *big.Int       // wei: to this; above Threshold
	Most      *big.Int       // wei in one top-up; nil: what it takes
	PerDay    *big.Int       // wei in all top-ups of a UTC day; nil: no ceiling
	MaxFee    *big.Int       // wei for a unit of gas; nil: no bound
	// Cooldown is how long after a top-up a key gets no other. Default 1 min.
	Cooldown time.Duration
}

// KeyMonitor takes keys out and in again, and tops them up. It has one Run.
type KeyMonitor struct {
	cfg    Config
	rounds chan struct{} // holds one: this process follows the chain
	failed chan struct{} // holds one: there is something in due

	mu       sync.Mutex
	refusals map[common.Address]int
	due      map[common.Address]string // to be taken out, and what for
	unsigned map[common.Address]signerFailures
}

// signerFailures of a key's signer.
type signerFailures struct {
	failures int // in a row
	last     time.Time
}

// New makes a Keeper; Run runs it.
func New(cfg Config) *KeyMonitor {
	cfg.Interval = cmp.Or(cfg.Interval, 5*time.Second)
	cfg.Margin = cmp.Or(cfg.Margin, 20)
	cfg.Refusals = cmp.Or(cfg.Refusals, 5)
	cfg.Cooldown = cmp.Or(cfg.Cooldown, time.Minute)
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.TopUp != nil {
		top := *cfg.TopUp
		top.Cooldown = cmp.Or(top.Cooldown, time.Minute)
		cfg.TopUp = &top
	}
	return &KeyMonitor{
		cfg: cfg, rounds: make(chan struct{}, 1), failed: make(chan struct{}, 1),
		refusals: map[common.Address]int{}, due: map[common.Address]string{}, unsigned: map[common.Address]signerFailures{},
	}
}

// Round tells that this process follows the chain; it does not wait. It is the tracker's hook.
func (k *KeyMonitor) Round(context.Context, []*relayer.Key, evm.Header) { signal(k.rounds) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Broadcasted tells what became of a broadcast; it does not wait. It is the sender's hook.
func (k *KeyMonitor) Broadcasted(key common.Address, o evm.Outcome) {
	against, known := countsAgainstKey(o)
	if !known {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !against {
		delete(k.refusals, key)
		return
	}
	if k.refusals[key]++; k.refusals[key] >= k.cfg.Refusals {
		delete(k.refusals, key)
		k.due[key] = o.String()
		signal(k.failed)
	}
}

// Signed tells whether a key's signer has signed; it does not wait. It is the sender's hook.
func (k *KeyMonitor) Signed(key common.Address, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.unsigned, key)
		return
	}
	s := signerFailures{failures: k.unsigned[key].failures + 1, last: time.Now()}
	k.unsigned[key] = s
	if s.failures%k.cfg.Refusals == 0 {
		k.due[key] = "its signer fails"
		signal(k.failed)
	}
}

// signerFailing reports whether a key's signer has failed lately, repeatedly, and not signed since.
func (k *KeyMonitor) signerFailing(key common.Address) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.unsigned[key]
	return s.failures >= k.cfg.Refusals && time.Since(s.last) < k.cfg.Cooldown
}

// idleAfter is how long after the last round this process surely follows no longer.
const idleAfter = 10 * time.Second

// Run looks after the keys until ctx ends, and returns nil then.
func (k *KeyMonitor) Run(ctx context.Context) error {
	if k.cfg.TopUp != nil && k.cfg.SwitchedOff {
		k.cfg.Log.Warn("top-ups stopped", "reason", "RELAYER_ENABLED is false")
	}
	var looked, followed time.Time
	idle := time.NewTicker(k.cfg.Interval)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
			if time.Since(followed) > max(3*k.cfg.Interval, idleAfter) {
				k.cfg.Metrics.spent.Reset() // another process follows now, and shows them
				k.cfg.Metrics.cost.Reset()
			}
		case <-k.failed:
			k.disableKeys(ctx)
		case <-k.rounds:
			followed = time.Now()
			k.disableKeys(ctx) // what failed before
			if time.Since(looked) < k.cfg.Interval {
				continue
			}
			looked = time.Now()
			if err := k.refreshBalances(ctx); err != nil && ctx.Err() == nil {
				k.cfg.Metrics.failures.Inc()
				k.cfg.Log.Warn("keys could not be looked after", "err", err)
			}
		}
	}
}

// disableKeys disables the keys that nodes refuse. It retries a failed write later.
func (k *KeyMonitor) disableKeys(ctx context.Context) {
	k.mu.Lock()
	due := k.due
	k.due = map[common.Address]string{}
	k.mu.Unlock()
	for key, why := range due {
		_, err := k.observe(ctx, []store.BalanceReading{{Key: key}}, func(now *relayer.Key, at time.Time) *store.KeyStateChange {
			if !now.Enabled {
				return nil
			}
			return &store.KeyStateChange{Reason: repeatedErrors + ": " + why, Until: at.Add(k.cfg.Cooldown), Error: why}
		})
		if err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("key could not be disabled", "relayer", key, "outcome", why, "err", err)
			k.mu.Lock()
			k.due[key] = why
			k.mu.Unlock()
		}
	}
}

// refreshBalances reads balances, writes them down, decides, and tops up.
func (k *KeyMonitor) refreshBalances(ctx context.Context) error {
	if err := k.count(ctx); err != nil {
		return err
	}
	k.price(ctx)
	funds, err := k.cfg.Store.Funds(ctx)
	if err != nil || len(funds) == 0 {
		return err
	}
	addresses := make([]common.Address, len(funds))
	for i, f := range funds {
		addresses[i] = f.Key.Address
	}
	balances, err := k.cfg.Chain.Balances(ctx, addresses)
	if err != nil {
		return err
	}
	looks := make([]store.BalanceReading, len(funds))
	refused := map[common.Address]bool{}
	for i, f := range funds {
		looks[i] = store.BalanceReading{Key: addresses[i], Balance: balances[i], Funds: f}
		refused[addresses[i]] = f.Refused || k.signerFailing(addresses[i])
	}
	if _, err := k.observe(ctx, looks, func(now *relayer.Key, at time.Time) *store.KeyStateChange {
		return k.cfg.evaluateBalance(now, refused[now.Address], at)
	}); err != nil {
		return err
	}
	if k.cfg.TopUp != nil && !k.cfg.SwitchedOff {
		k.topUp(ctx, looks)
	}
	return nil
}

// observe writes down, announces and logs.
func (k *KeyMonitor) observe(ctx context.Context, looks []store.BalanceReading, decide func(*relayer.Key, time.Time) *store.KeyStateChange) ([]*relayer.Key, error) {
	switched, err := k.cfg.Store.RecordBalances(ctx, looks, decide, k.announce)
	for _, key := range switched {
		log := k.cfg.Log.With("relayer", key.Address, "balance", key.Balance, "min_balance", key.MinBalance)
		if key.Enabled {
			k.cfg.Metrics.switches.WithLabelValues("enabled").Inc()
			log.Info("key enabled", "checks", key.Checks)
		} else {
			k.cfg.Metrics.switches.WithLabelValues("disabled").Inc()
			log.Warn("key disabled", "reason", key.DisabledReason, "until", key.DisabledUntil)
		}
	}
	return switched, err
}

func (k *KeyMonitor) announce(ctx context.Context, tx pgx.Tx, key *relayer.Key) error {
	if k.cfg.Outbox == nil || len(k.cfg.Store.Targets) == 0 {
		return nil
	}
	shown := k.cfg.Describe(key)
	var event any = webhook.RelayerEnabled{Relayer: shown, RetryCount: uint32(min(key.Checks, 1<<30))}
	if !key.Enabled {
		event = webhook.RelayerDisabled{Relayer: shown, DisableReason: key.DisabledReason}
	}
	return k.cfg.Outbox.Announce(ctx, tx, k.cfg.Store.Targets, shown.ID, event)
}

// topUp gives ether to the keys that lack it. That one gets none is no reason for the others, nor is it a look that failed:
// the balances are known.
func (k *KeyMonitor) topUp(ctx context.Context, looks []store.BalanceReading) {
	for _, look := range looks {
		key := look.Funds.Key
		if key.Funding || key.Paused || look.Balance.Cmp(k.cfg.TopUp.Threshold) >= 0 {
			continue
		}
		tx, err := k.fund(ctx, key.Address, look.Balance)
		if ctx.Err() != nil && err != nil {
			return
		}
		k.toppedUp(key, tx, err)
	}
}

// topUpsPending is how many top-ups may be on their way at once.
const topUpsPending = 16

// fund writes a top-up down for a key with so much.
func (k *KeyMonitor) fund(ctx context.Context, key common.Address, balance *big.Int) (*relayer.Transaction, error) {
	top := k.cfg.TopUp
	fees, err := k.cfg.Chain.Fees(ctx)
	if err != nil {
		return nil, err
	}
	amount := new(big.Int).Sub(top.Target, balance)
	if top.Most != nil && top.Most.Cmp(amount) < 0 {
		amount = top.Most
	}
	return k.cfg.Store.TopUp(ctx, store.TopUp{
		From: top.From, To: key, Amount: amount, PerDay: top.PerDay, Quiet: top.Cooldown, Cap: topUpsPending,
		Fee: sender.Price(&relayer.Request{Speed: relayer.Fast}, fees, top.MaxFee).MaxFee,
		Gas: k.cfg.Chain.TransferGas(ctx, top.From, key, false),
	})
}

// toppedUp counts, logs and passes on.
func (k *KeyMonitor) toppedUp(key *relayer.Key, tx *relayer.Transaction, err error) {
	outcome := "sent"
	_, limited := errors.AsType[*relayer.LimitError](err)
	_, poor := errors.AsType[*relayer.FundsError](err)
	switch {
	case errors.Is(err, store.ErrToppedUp):
		return
	case limited:
		outcome = "limited"
	case poor:
		outcome = "unfunded"
	case errors.Is(err, relayer.ErrPaused), errors.Is(err, relayer.ErrDisabled):
		outcome = "paused"
	case err != nil:
		outcome = "failed"
	}
	k.cfg.Metrics.topUps.WithLabelValues(outcome).Inc()
	if err != nil {
		k.cfg.Log.Warn("key is not topped up", "relayer", key.Address, "outcome", outcome, "err", err)
		return
	}
	k.cfg.Metrics.toppedUp.Add(ether(tx.Value))
	k.cfg.Log.Info("key is topped up", "relayer", key.Address, "from", tx.From, "wei", tx.Value, "tx", tx.ID)
	if k.cfg.Sign != nil {
		k.cfg.Sign(sender.NewJob(tx))
	}
}

// typicalGas is what a transaction uses that does a little more than move ether.
const typicalGas = 100_000

// price shows what a transaction costs. Where no node tells, what was known stays.
func (k *KeyMonitor) price(ctx context.Context) {
	fees, err := k.cfg.Chain.Fees(ctx)
	if err != nil {
		return
	}
	fee := sender.Price(&relayer.Request{Speed: relayer.Fast}, fees, nil).MaxFee
	k.cfg.Metrics.cost.WithLabelValues().Set(ether(new(big.Int).Mul(fee, big.NewInt(typicalGas))))
}

// count shows what today's budgets have spent.
func (k *KeyMonitor) count(ctx context.Context) error {
	spending, err := k.cfg.Store.BudgetUsage(ctx)
	if err != nil {
		return err
	}
	k.cfg.Metrics.spent.Reset()
	for _, s := range spending {
		k.cfg.Metrics.spent.WithLabelValues(s.Scope, s.Subject).Set(ether(s.Wei))
	}
	return nil
}

func ether(wei *big.Int) float64 {
	f, _ := new(big.Float).Quo(new(big.Float).SetInt(wei), big.NewFloat(params.Ether)).Float64()
	return f
}
