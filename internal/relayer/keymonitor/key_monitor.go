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
	idle   chan struct{} // holds one: the tracker left out a round in this process
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
		cfg: cfg, rounds: make(chan struct{}, 1), idle: make(chan struct{}, 1), failed: make(chan struct{}, 1),
		refusals: map[common.Address]int{}, due: map[common.Address]string{}, unsigned: map[common.Address]signerFailures{},
	}
}

// Round reports that this process tracks the chain; it does not wait. The tracker calls it after each round.
func (m *Monitor) Round(context.Context, evm.Header) { signal(m.rounds) }

// Idle reports the same while nothing is pending; balances are not read then. The tracker calls it instead of Round.
func (m *Monitor) Idle() { signal(m.idle) }

// TakeTopUps returns the top-ups that were stored since the last call: their caller signs them. Top-ups that no caller takes are found
// by the process that follows the chain, as all unsigned transactions are.
func (m *Monitor) TakeTopUps() (stored []*relayer.Transaction) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stored, m.topUps = m.topUps, nil
	return stored
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Broadcasted counts the outcome of a broadcast; it does not wait. The sender calls it after each broadcast.
func (m *Monitor) Broadcasted(key common.Address, o evm.Outcome) {
	against, known := countsAgainstKey(o)
	if !known {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !against {
		delete(m.refusals, key)
		return
	}
	if m.refusals[key]++; m.refusals[key] >= m.cfg.Refusals {
		delete(m.refusals, key)
		m.due[key] = o.String()
		signal(m.failed)
	}
}

// Signed counts whether a key's signer has signed; it does not wait. The sender calls it after each signature.
func (m *Monitor) Signed(key common.Address, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.unsigned, key)
		return
	}
	s := signerFailures{failures: m.unsigned[key].failures + 1, last: time.Now()}
	m.unsigned[key] = s
	if s.failures%m.cfg.Refusals == 0 {
		m.due[key] = "its signer fails"
		signal(m.failed)
	}
}

// signerFailing reports whether a key's signer has failed repeatedly within Cooldown, and not signed since.
func (m *Monitor) signerFailing(key common.Address) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.unsigned[key]
	return s.failures >= m.cfg.Refusals && time.Since(s.last) < m.cfg.Cooldown
}

// idleAfter is the time since the last round, complete or left out, after which this process certainly no longer holds the
// tracker lease.
const idleAfter = 10 * time.Second

// Run monitors the keys until ctx ends, and returns nil then.
func (m *Monitor) Run(ctx context.Context) error {
	if m.cfg.TopUp != nil && m.cfg.SwitchedOff {
		m.cfg.Log.Warn("top-ups stopped", "reason", "RELAYER_ENABLED is false")
	}
	var looked, followed time.Time
	ticker := time.NewTicker(m.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.idle:
			followed = time.Now()
		case <-ticker.C:
			m.disableKeys(ctx) // whose write failed before
			if time.Since(followed) > max(3*m.cfg.Interval, idleAfter) {
				m.cfg.Metrics.spent.Reset() // another process tracks the chain now, and shows them
				m.cfg.Metrics.cost.Reset()
			}
		case <-m.failed:
			m.disableKeys(ctx)
		case <-m.rounds:
			followed = time.Now()
			m.disableKeys(ctx) // failures reported before the round
			if time.Since(looked) < m.cfg.Interval {
				continue
			}
			looked = time.Now()
			if err := m.refreshBalances(ctx); err != nil && ctx.Err() == nil {
				m.cfg.Metrics.failures.Inc()
				m.cfg.Log.Warn("keys could not be looked after", "err", err)
			}
		}
	}
}

// disableKeys disables the keys that nodes or signers reject. It retries a failed write later.
func (m *Monitor) disableKeys(ctx context.Context) {
	m.mu.Lock()
	due := m.due
	m.due = map[common.Address]string{}
	m.mu.Unlock()
	for key, why := range due {
		_, err := m.observe(ctx, []store.BalanceReading{{Key: key}}, func(now *relayer.Key, at time.Time) *store.KeyStateChange {
			if !now.Enabled {
				return nil
			}
			return &store.KeyStateChange{Reason: repeatedErrors + ": " + why, Until: at.Add(m.cfg.Cooldown), Error: why}
		})
		if err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("key could not be disabled", "key", key, "outcome", why, "err", err)
			m.mu.Lock()
			m.due[key] = why
			m.mu.Unlock()
		}
	}
}

// refreshBalances reads balances, stores them, decides on each key, and tops up.
func (m *Monitor) refreshBalances(ctx context.Context) error {
	if err := m.count(ctx); err != nil {
		return err
	}
	m.price(ctx)
	funds, err := m.cfg.Store.Funds(ctx)
	if err != nil || len(funds) == 0 {
		return err
	}
	addresses := make([]common.Address, len(funds))
	for i, f := range funds {
		addresses[i] = f.Key.Address
	}
	balances, err := m.cfg.Chain.Balances(ctx, addresses)
	if err != nil {
		return err
	}
	readings := make([]store.BalanceReading, len(funds))
	refused := map[common.Address]bool{}
	for i, f := range funds {
		readings[i] = store.BalanceReading{Key: addresses[i], Balance: balances[i], Funds: f}
		refused[addresses[i]] = f.Refused || m.signerFailing(addresses[i])
	}
	if _, err := m.observe(ctx, readings, func(now *relayer.Key, at time.Time) *store.KeyStateChange {
		return m.cfg.evaluateBalance(now, refused[now.Address], at)
	}); err != nil {
		return err
	}
	if m.cfg.TopUp != nil && !m.cfg.SwitchedOff {
		m.topUp(ctx, readings)
	}
	return nil
}

// observe stores, announces and logs key changes.
func (m *Monitor) observe(ctx context.Context, readings []store.BalanceReading, decide func(*relayer.Key, time.Time) *store.KeyStateChange) ([]*relayer.Key, error) {
	switched, err := m.cfg.Store.RecordBalances(ctx, readings, decide, m.announce)
	for _, key := range switched {
		log := m.cfg.Log.With("key", key.Address, "balance", key.Balance, "min_balance", key.MinBalance)
		if key.Enabled {
			m.cfg.Metrics.switches.WithLabelValues("enabled").Inc()
			log.Info("key enabled", "checks", key.Checks)
		} else {
			m.cfg.Metrics.switches.WithLabelValues("disabled").Inc()
			log.Warn("key disabled", "reason", key.DisabledReason, "until", key.DisabledUntil)
		}
	}
	return switched, err
}

func (m *Monitor) announce(ctx context.Context, tx pgx.Tx, key *relayer.Key) error {
	if len(m.cfg.Store.Targets) == 0 {
		return nil
	}
	shown := m.cfg.Describe(key)
	var event any = events.NewRelayerEnabled(&shown, uint32(min(key.Checks, 1<<30)))
	if !key.Enabled {
		event = events.NewRelayerDisabled(&shown, key.DisabledReason)
	}
	pool := events.Pool{ChainID: m.cfg.Store.ChainID, ID: m.cfg.Store.Pool}
	return pool.Announce(ctx, tx, m.cfg.Store.Targets, shown.ID, event)
}

// topUp tops up the keys below the threshold. A failed top-up affects neither the other keys nor the balance check, because
// the balances are recorded.
func (m *Monitor) topUp(ctx context.Context, readings []store.BalanceReading) {
	for _, reading := range readings {
		key := reading.Funds.Key
		if key.Funding || key.Paused || reading.Balance.Cmp(m.cfg.TopUp.Threshold) >= 0 {
			continue
		}
		tx, err := m.fund(ctx, key.Address, reading.Balance)
		if ctx.Err() != nil && err != nil {
			return
		}
		m.toppedUp(key, tx, err)
	}
}

// topUpsPending is the maximum number of pending top-ups.
const topUpsPending = 16

// fund stores a top-up for a key with this balance.
func (m *Monitor) fund(ctx context.Context, key common.Address, balance *big.Int) (*relayer.Transaction, error) {
	top := m.cfg.TopUp
	fees, err := m.cfg.Chain.Fees(ctx)
	if err != nil {
		return nil, err
	}
	amount := new(big.Int).Sub(top.Target, balance)
	if top.Most != nil && top.Most.Cmp(amount) < 0 {
		amount = top.Most
	}
	return m.cfg.Store.TopUp(ctx, store.TopUp{
		From: top.From, To: key, Amount: amount, PerDay: top.PerDay, Quiet: top.Cooldown, Cap: topUpsPending,
		Fee: sender.Price(&relayer.Request{Speed: relayer.Fast}, fees, top.MaxFee).MaxFee,
		Gas: m.cfg.Chain.TransferGas(ctx, top.From, key, false),
	})
}

// toppedUp counts and logs the outcome of a top-up, and passes it on to be signed.
func (m *Monitor) toppedUp(key *relayer.Key, tx *relayer.Transaction, err error) {
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
	m.cfg.Metrics.topUps.WithLabelValues(outcome).Inc()
	if err != nil {
		m.cfg.Log.Warn("key is not topped up", "key", key.Address, "outcome", outcome, "err", err)
		return
	}
	m.cfg.Metrics.toppedUp.Add(ether(tx.Value))
	m.cfg.Log.Info("key is topped up", "key", key.Address, "from", tx.From, "wei", tx.Value, "tx", tx.ID)
	m.mu.Lock()
	m.topUps = append(m.topUps, tx)
	m.mu.Unlock()
}

// typicalGas is the gas of a transaction that does a little more than transfer ether.
const typicalGas = 100_000

// price sets the metric of a transaction's cost. If no node responds, it keeps the last value.
func (m *Monitor) price(ctx context.Context) {
	fees, err := m.cfg.Chain.Fees(ctx)
	if err != nil {
		return
	}
	fee := sender.Price(&relayer.Request{Speed: relayer.Fast}, fees, nil).MaxFee
	m.cfg.Metrics.cost.WithLabelValues().Set(ether(new(big.Int).Mul(fee, big.NewInt(typicalGas))))
}

// count sets the metric of today's budgets.
func (m *Monitor) count(ctx context.Context) error {
	spending, err := m.cfg.Store.BudgetUsage(ctx)
	if err != nil {
		return err
	}
	m.cfg.Metrics.spent.Reset()
	for _, s := range spending {
		m.cfg.Metrics.spent.WithLabelValues(s.Scope, s.Subject).Set(ether(s.Wei))
	}
	return nil
}

func ether(wei *big.Int) float64 {
	f, _ := new(big.Float).Quo(new(big.Float).SetInt(wei), big.NewFloat(params.Ether)).Float64()
	return f
}
