package store

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Budgets limit the gas cost of one day's transactions, in wei, by UTC; nil: no limit.
//
// A transaction counts with its Reserve from its acceptance on, and with its actual cost once it is final. Both
// happen in the database transactions that accept it and make it final, under locks of the accounts' rows. So the reserved
// sum never exceeds a budget, however many processes accept concurrently. The actual cost can: a bump of a stuck
// transaction is never rejected, and is charged to the account only when the transaction is final. No-ops that fill gaps
// are not counted. Nor are fees that a chain charges in addition to gas times price, as some rollups do.
type Budgets struct {
	Caller *big.Int // per API key
	Trader *big.Int // per trader that is named
	Key    *big.Int // per relayer key: past it other keys are used
}

func (b Budgets) any() bool { return b.Caller != nil || b.Trader != nil || b.Key != nil }

// scope is a kind of account.
type scope string

const (
	scopeCaller scope = "caller"
	scopeTrader scope = "trader"
	scopeKey    scope = "key"
	scopeTopUp  scope = "topup"
)

var scopeNames = map[scope]string{scopeCaller: "the API key", scopeTrader: "the trader", scopeKey: "every key that may send it"}

// account is the subject of a budget.
type account struct {
	scope   scope
	subject string
}

// budgetTracker holds today's accounts while their rows are locked. In its zero value everything fits.
type budgetTracker struct {
	limits map[scope]*big.Int
	day    time.Time // its midnight, UTC, by the database's clock
	spent  map[account]*big.Int
	taken  map[account]*big.Int
}

// open sets the limits. Without any, lock queues nothing.
func (t *budgetTracker) open(b Budgets) {
	t.limits, t.spent, t.taken = map[scope]*big.Int{}, map[account]*big.Int{}, map[account]*big.Int{}
	for s, limit := range map[scope]*big.Int{scopeCaller: b.Caller, scopeTrader: b.Trader, scopeKey: b.Key} {
		if limit != nil {
			t.limits[s] = limit
		}
	}
}

// lock queues the statement that locks and reads the accounts with a limit. It creates missing accounts, because only an
// existing row can be locked.
func (t *budgetTracker) lock(b *pgx.Batch, s *Store, accounts []account) {
	accounts = slices.DeleteFunc(accounts, func(a account) bool { return t.limits[a.scope] == nil || a.subject == "" && a.scope == scopeTrader })
	if len(accounts) == 0 {
		return
	}
	seen := map[account]bool{}
	var scopes, subjects []string
	for _, a := range accounts {
		if !seen[a] {
			seen[a] = true
			scopes, subjects = append(scopes, string(a.scope)), append(subjects, a.subject)
		}
	}
	b.Queue(`INSERT INTO relayer_budgets AS b (chain_id, pool_id, day, scope, subject, spent_wei)
		SELECT $1, $2, (now() AT TIME ZONE 'utc')::date, scope, subject, 0 FROM unnest($3::text[], $4::text[]) AS a (scope, subject)
		ORDER BY scope, subject
		ON CONFLICT (chain_id, pool_id, day, scope, subject) DO UPDATE SET spent_wei = b.spent_wei
		RETURNING b.day, b.scope, b.subject, b.spent_wei::text`,
		s.ChainID, s.Pool, scopes, subjects).Query(func(rows pgx.Rows) error {
		var a account
		var spent string
		_, err := pgx.ForEachRow(rows, []any{&t.day, &a.scope, &a.subject, &spent}, func() error {
			t.spent[a] = relayer.ParseDecimal(&spent)
			return nil
		})
		return err
	})
}

// left returns the amount that an account may still spend; nil: no limit.
func (t *budgetTracker) left(a account) *big.Int {
	limit, spent := t.limits[a.scope], t.spent[a]
	if limit == nil || spent == nil {
		return nil
	}
	left := new(big.Int).Sub(limit, spent)
	if taken := t.taken[a]; taken != nil {
		left.Sub(left, taken)
	}
	return left
}

func (t *budgetTracker) fits(a account, wei *big.Int) bool {
	left := t.left(a)
	return left == nil || wei == nil || left.Cmp(wei) >= 0
}

// take charges an amount that fits.
func (t *budgetTracker) take(a account, wei *big.Int) {
	if t.spent[a] == nil || wei == nil {
		return
	}
	if t.taken[a] == nil {
		t.taken[a] = new(big.Int)
	}
	t.taken[a].Add(t.taken[a], wei)
}

// BudgetLimits returns the names of the budgets, as used in [relayer.LimitError].
func BudgetLimits() (names []string) {
	for _, s := range []scope{scopeCaller, scopeTrader, scopeKey} {
		names = append(names, budgetLimit(s))
	}
	return names
}

func budgetLimit(s scope) string { return "daily gas budget of " + scopeNames[s] }

// refusal returns the error for an amount that does not fit: retry tomorrow.
func (t *budgetTracker) refusal(s scope) error {
	return &relayer.LimitError{Limit: budgetLimit(s), After: max(time.Second, time.Until(t.day.AddDate(0, 0, 1)))}
}

// today returns the day to store with charged rows; nil if nothing was locked.
func (t *budgetTracker) today() *time.Time { return timeOrNil(t.day) }

// store queues the update of the charged accounts.
func (t *budgetTracker) store(b *pgx.Batch, s *Store) {
	var scopes, subjects, wei []string
	for a, n := range t.taken {
		scopes, subjects, wei = append(scopes, string(a.scope)), append(subjects, a.subject), append(wei, n.String())
	}
	if len(scopes) == 0 {
		return
	}
	b.Queue(`UPDATE relayer_budgets b SET spent_wei = b.spent_wei + t.wei::numeric
		FROM unnest($4::text[], $5::text[], $6::text[]) AS t (scope, subject, wei)
		WHERE b.chain_id = $1 AND b.pool_id = $2 AND b.day = $3 AND b.scope = t.scope AND b.subject = t.subject`,
		s.ChainID, s.Pool, t.day, scopes, subjects, wei)
}

// settleBudgetSQL is a CTE suffix for rows of relayer_txs that the CTE "changed" returns. For rows that are final it
// replaces the reserved amount by the actual cost. It locks the accounts in the order of [budgetTracker.lock]. A row holds
// its reserved amount and account days. So the amount is refunded whatever budgets this process has, also by an operator's
// command, which has none.
var settleBudgetSQL = chargeBudgetSQL("")

// chargeBudgetSQL is [settleBudgetSQL] with additional charges: rows (chain_id, pool_id, day, scope, subject, wei) of
// another query, which begins with UNION ALL. All accounts are locked in one order.
func chargeBudgetSQL(more string) string {
	return `, charges AS (
	SELECT chain_id, pool_id, day, scope, subject, sum(wei) AS wei FROM (
		SELECT c.chain_id, c.pool_id, e.day, e.scope, e.subject, coalesce(c.gas_used * c.gas_price_paid, 0) - c.reserve_wei AS wei
		FROM changed c CROSS JOIN LATERAL (VALUES (c.budget_day, 'caller', c.caller), (c.budget_day, 'trader', c.trader),
			(c.key_budget_day, 'key', c.relayer_address)) AS e (day, scope, subject)
		WHERE NOT c.open AND c.reserve_wei IS NOT NULL AND e.day IS NOT NULL` + more + `) AS one GROUP BY 1, 2, 3, 4, 5
), accounts AS (
	SELECT b.chain_id, b.pool_id, b.day, b.scope, b.subject, x.wei FROM relayer_budgets b
	JOIN charges x USING (chain_id, pool_id, day, scope, subject) ORDER BY b.day, b.scope, b.subject FOR UPDATE OF b
), paid AS (
	UPDATE relayer_budgets b SET spent_wei = greatest(0, b.spent_wei + a.wei) FROM accounts a
	WHERE (b.chain_id, b.pool_id, b.day, b.scope, b.subject) = (a.chain_id, a.pool_id, a.day, a.scope, a.subject))
`
}

// reserveAgain charges a transaction's budgets for the amount by which its reserve grows, or refunds the amount by which it
// shrinks. The transaction's row is locked.
func (s *Store) reserveAgain(ctx context.Context, tx pgx.Tx, was *relayer.Transaction, reserve *big.Int) error {
	if was.Reserve == nil || reserve == nil {
		return nil
	}
	more := new(big.Int).Sub(reserve, was.Reserve)
	rows, err := tx.Query(ctx, `SELECT b.day, b.scope, b.subject, b.spent_wei::text FROM relayer_txs t JOIN relayer_budgets b USING (chain_id, pool_id)
		WHERE t.id = $1 AND (b.day = t.budget_day AND (b.scope, b.subject) IN (('caller', t.caller), ('trader', t.trader))
			OR b.day = t.key_budget_day AND (b.scope, b.subject) = ('key', t.relayer_address))
		ORDER BY b.day, b.scope, b.subject FOR UPDATE OF b`, was.ID)
	if err != nil {
		return fmt.Errorf("read budgets: %w", err)
	}
	var h budgetTracker
	h.open(s.Budgets)
	var a account
	var spent string
	var refused error
	batch := new(pgx.Batch)
	if _, err := pgx.ForEachRow(rows, []any{&h.day, &a.scope, &a.subject, &spent}, func() error {
		h.spent[a] = relayer.ParseDecimal(&spent)
		if more.Sign() > 0 && !h.fits(a, more) {
			refused = h.refusal(a.scope)
		}
		batch.Queue(`UPDATE relayer_budgets SET spent_wei = greatest(0, spent_wei + $6::text::numeric)
			WHERE chain_id = $1 AND pool_id = $2 AND day = $3 AND scope = $4 AND subject = $5`,
			s.ChainID, s.Pool, h.day, string(a.scope), a.subject, more.String())
		return nil
	}); err != nil {
		return fmt.Errorf("read budgets: %w", err)
	}
	if refused != nil {
		return refused
	}
	return tx.SendBatch(ctx, batch).Close()
}

// refundBudgetSQL is [settleBudgetSQL] and refunds a key the amount reserved for a transaction that it lost. The CTE
// "displaced" has the row as it was.
var refundBudgetSQL = chargeBudgetSQL(` UNION ALL
		SELECT d.chain_id, d.pool_id, d.key_budget_day, 'key', d.relayer_address, -d.reserve_wei FROM displaced d JOIN changed c USING (id)
		WHERE d.reserve_wei IS NOT NULL AND d.key_budget_day IS NOT NULL`)

// Usage is the amount that an account has spent and reserved today.
type Usage struct {
	Scope, Subject string
	Wei            *big.Int
}

// BudgetUsage returns today's accounts of API keys, relayer keys and top-ups. It leaves traders out, because there may be
// any number.
func (s *Store) BudgetUsage(ctx context.Context) ([]Usage, error) {
	return collect(ctx, s.db, "read budgets", func(row pgx.CollectableRow) (u Usage, err error) {
		var wei string
		err = row.Scan(&u.Scope, &u.Subject, &wei)
		u.Wei = relayer.ParseDecimal(&wei)
		return u, err
	}, `SELECT scope, subject, spent_wei::text FROM relayer_budgets
		WHERE chain_id = $1 AND pool_id = $2 AND day = (now() AT TIME ZONE 'utc')::date AND scope <> 'trader' ORDER BY 1, 2`, s.ChainID, s.Pool)
}
