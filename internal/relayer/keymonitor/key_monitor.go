package keymonitor

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
	"github.com/rollcall-dev/rollcall/internal/relayer/events"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Chain is the part of the nodes' client that a Monitor uses.
type Chain interface {
	Balances(context.Context, []common.Address) ([]*big.Int, error)
	Fees(context.Context) (evm.Fees, error)
	TransferGas(ctx context.Context, from, to common.Address, fresh bool) uint64
}

// Config configures a Monitor. Fields without a default are required.
type Config struct {
	Store *store.Store
	Chain Chain
	Log   *slog.Logger
	// Describe returns a key as a relayer, with the policies and the switches.
	Describe func(*relayer.Key) relayer.Relayer
	// Metrics are unregistered by default.
	Metrics *Metrics

	// Interval is the interval at which balances are read. Default 5 s.
	Interval time.Duration
	// Margin is how far above its minimum balance, in percent, a key's balance must be to enable it again. Default 20.
	Margin int
	// Refusals is how many broadcasts of a key nodes must reject, for lack of funds or permanently, with none accepted in
	// between, to disable it. The same number of its signer's failures in a row disables it too. Default 5.
	Refusals int
	// Cooldown is how long a key is disabled at first. Default 1 min.
	Cooldown time.Duration
	// TopUp, if not nil, configures top-ups.
	TopUp *TopUp
	// SwitchedOff stops new top-ups; pending ones are finished. It is the relayer's kill switch.
	SwitchedOff bool
}

// TopUp configures top-ups.
type TopUp struct {
	From      common.Address // the funding key
	Threshold *big.Int       // wei; a key with less gets a top-up
	Target    *big.Int       // wei; the balance after a top-up; above Threshold
	Most      *big.Int       // wei; the maximum of one top-up; nil: no maximum
	PerDay    *big.Int       // wei; the maximum of all top-ups of a UTC day; nil: no maximum
	MaxFee    *big.Int       // wei; the maximum per unit of gas; nil: no maximum
	// Cooldown is how long after a top-up a key gets no other. Default 1 min.
	Cooldown time.Duration
}

// Monitor disables, enables and tops up keys. Run may be called once.
type Monitor struct {
	cfg    Config
	rounds chan struct{} // holds one: the tracker ran a round in this process
	failed chan struct{} // holds one: due is not empty

	mu       sync.Mutex
	refusals map[common.Address]int
	due      map[common.Address]string // keys to be disabled, and the reason
	unsigned map[common.Address]signerFailures
	topUps   []*relayer.Transaction // stored, and not taken yet
}

// signerFailures counts the failures of a key's signer.
type signerFailures struct {
	failures int // in a row
	last     time.Time
}

// New returns a Monitor; Run runs it.
func New(cfg Config) *Monitor {
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
	return &Monitor{
		cfg: cfg, rounds: make(chan struct{}, 1), failed: make(chan struct{}, 1),
		refusals: map[common.Address]int{}, due: map[common.Address]string{}, unsigned: map[common.Address]signerFailures{},
	}
}

// Round reports that this process tracks the chain; it does not wait. The tracker calls it after each round.
func (k *Monitor) Round(context.Context, evm.Header) { signal(k.rounds) }

// TakeTopUps returns the top-ups that were stored since the last call: their caller signs them. Top-ups that no caller takes are found
// by the process that follows the chain, as all unsigned transactions are.
func (k *Monitor) TakeTopUps() (stored []*relayer.Transaction) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stored, k.topUps = k.topUps, nil
	return stored
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Broadcasted counts the outcome of a broadcast; it does not wait. The sender calls it after each broadcast.
func (k *Monitor) Broadcasted(key common.Address, o evm.Outcome) {
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

// Signed counts whether a key's signer has signed; it does not wait. The sender calls it after each signature.
func (k *Monitor) Signed(key common.Address, err error) {
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

// signerFailing reports whether a key's signer has failed repeatedly within Cooldown, and not signed since.
func (k *Monitor) signerFailing(key common.Address) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.unsigned[key]
	return s.failures >= k.cfg.Refusals && time.Since(s.last) < k.cfg.Cooldown
}

// idleAfter is the time since the last round after which this process certainly no longer holds the tracker lease.
const idleAfter = 10 * time.Second

// Run monitors the keys until ctx ends, and returns nil then.
func (k *Monitor) Run(ctx context.Context) error {
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
			k.disableKeys(ctx) // whose write failed before
			if time.Since(followed) > max(3*k.cfg.Interval, idleAfter) {
				k.cfg.Metrics.spent.Reset() // another process tracks the chain now, and shows them
				k.cfg.Metrics.cost.Reset()
			}
		case <-k.failed:
			k.disableKeys(ctx)
		case <-k.rounds:
			followed = time.Now()
			k.disableKeys(ctx) // failures reported before the round
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

// disableKeys disables the keys that nodes or signers reject. It retries a failed write later.
func (k *Monitor) disableKeys(ctx context.Context) {
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
			k.cfg.Log.Warn("key could not be disabled", "key", key, "outcome", why, "err", err)
			k.mu.Lock()
			k.due[key] = why
			k.mu.Unlock()
		}
	}
}

// refreshBalances reads balances, stores them, decides on each key, and tops up.
func (k *Monitor) refreshBalances(ctx context.Context) error {
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

// observe stores, announces and logs key changes.
func (k *Monitor) observe(ctx context.Context, looks []store.BalanceReading, decide func(*relayer.Key, time.Time) *store.KeyStateChange) ([]*relayer.Key, error) {
	switched, err := k.cfg.Store.RecordBalances(ctx, looks, decide, k.announce)
	for _, key := range switched {
		log := k.cfg.Log.With("key", key.Address, "balance", key.Balance, "min_balance", key.MinBalance)
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

func (k *Monitor) announce(ctx context.Context, tx pgx.Tx, key *relayer.Key) error {
	if len(k.cfg.Store.Targets) == 0 {
		return nil
	}
	shown := k.cfg.Describe(key)
	var event any = events.NewRelayerEnabled(&shown, uint32(min(key.Checks, 1<<30)))
	if !key.Enabled {
		event = events.NewRelayerDisabled(&shown, key.DisabledReason)
	}
	pool := events.Pool{ChainID: k.cfg.Store.ChainID, ID: k.cfg.Store.Pool}
	return pool.Announce(ctx, tx, k.cfg.Store.Targets, shown.ID, event)
}

// topUp tops up the keys below the threshold. A failed top-up affects neither the other keys nor the balance check, because
// the balances are recorded.
func (k *Monitor) topUp(ctx context.Context, looks []store.BalanceReading) {
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

// topUpsPending is the maximum number of pending top-ups.
const topUpsPending = 16

// fund stores a top-up for a key with this balance.
func (k *Monitor) fund(ctx context.Context, key common.Address, balance *big.Int) (*relayer.Transaction, error) {
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

// toppedUp counts and logs the outcome of a top-up, and passes it on to be signed.
func (k *Monitor) toppedUp(key *relayer.Key, tx *relayer.Transaction, err error) {
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
		k.cfg.Log.Warn("key is not topped up", "key", key.Address, "outcome", outcome, "err", err)
		return
	}
	k.cfg.Metrics.toppedUp.Add(ether(tx.Value))
	k.cfg.Log.Info("key is topped up", "key", key.Address, "from", tx.From, "wei", tx.Value, "tx", tx.ID)
	k.mu.Lock()
	k.topUps = append(k.topUps, tx)
	k.mu.Unlock()
}

// typicalGas is the gas of a transaction that does a little more than transfer ether.
const typicalGas = 100_000

// price sets the metric of a transaction's cost. If no node responds, it keeps the last value.
func (k *Monitor) price(ctx context.Context) {
	fees, err := k.cfg.Chain.Fees(ctx)
	if err != nil {
		return
	}
	fee := sender.Price(&relayer.Request{Speed: relayer.Fast}, fees, nil).MaxFee
	k.cfg.Metrics.cost.WithLabelValues().Set(ether(new(big.Int).Mul(fee, big.NewInt(typicalGas))))
}

// count sets the metric of today's budgets.
func (k *Monitor) count(ctx context.Context) error {
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
