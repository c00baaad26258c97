package store

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// roundRobinOrderSQL is the end of a statement that selects rows of several keys. It orders the lowest nonce of each key
// first, then the second of each. So one key with many rows does not delay the others. what is the alias of the rows, limit
// is the parameter.
func roundRobinOrderSQL(what, address, limit string) string {
	return fmt.Sprintf(` ORDER BY row_number() OVER (PARTITION BY %[1]s.%[2]s ORDER BY %[1]s.nonce), %[1]s.%[2]s LIMIT %[3]s`, what, address, limit)
}

// Unsigned returns transactions that have a nonce and no attempt and did not change for age: the process that allocated the
// nonce may have died. It reads from the given nonces on, each key in turn, its lowest first; at most limit.
func (s *Store) Unsigned(ctx context.Context, froms []KeyNonce, age time.Duration, limit int) ([]*relayer.Transaction, error) {
	addresses, nonces := s.keyNonces(froms)
	return s.list(ctx, "list unsigned transactions", `SELECT t.* FROM unnest($2::text[], $3::bigint[]) AS f (address, nonce) CROSS JOIN LATERAL (
		`+selectToSign+` WHERE chain_id = $1 AND relayer_address = f.address AND nonce >= f.nonce AND open AND nonce IS NOT NULL
			AND status = 'allocated' AND updated_at < now() - $4::interval
			AND NOT EXISTS (SELECT FROM relayer_attempts a WHERE a.tx_id = relayer_txs.id AND a.nonce = relayer_txs.nonce AND a.address = relayer_txs.relayer_address)
		ORDER BY nonce LIMIT $5) AS t`+roundRobinOrderSQL("t", "relayer_address", "$5"), s.ChainID, addresses, nonces, age, limit)
}

func (s *Store) list(ctx context.Context, doing, query string, args ...any) ([]*relayer.Transaction, error) {
	return collect(ctx, s.db, doing, scanTransaction, query, args...)
}

// KeyNonce is a key and a nonce. As a range it includes this nonce and those above.
type KeyNonce struct {
	Key   common.Address
	Nonce uint64
}

func (s *Store) keyNonces(keyNonces []KeyNonce) (addresses []string, nonces []int64) {
	for _, f := range keyNonces {
		addresses, nonces = append(addresses, hexAddress(f.Key)), append(nonces, int64(f.Nonce))
	}
	return addresses, nonces
}

// ListUnconfirmed returns the latest attempts of transactions not mined in a known block, from the given nonces on, whose
// row has not changed for age. The lowest nonce of each key comes first, at most limit of each key. Final transactions are
// included if their nonce is in the range: a chain that dropped a deep block needs them again. [Store.Unsent] returns those
// that no node accepted. Paused attempts are left out, except of the keys in atOnce.
func (s *Store) ListUnconfirmed(ctx context.Context, froms []KeyNonce, age time.Duration, atOnce []common.Address, limit int) ([]*relayer.Attempt, error) {
	addresses, nonces := s.keyNonces(froms)
	return s.listAttempts(ctx, "list unmined attempts", `SELECT a.* FROM unnest($2::text[], $3::bigint[]) AS f (address, nonce)
		CROSS JOIN LATERAL (SELECT t.id, t.nonce, t.relayer_address FROM relayer_txs t
			WHERE t.chain_id = $1 AND t.relayer_address = f.address AND t.nonce >= f.nonce AND t.kind <> 'foreign' AND t.generation = `+generationSQL("$1")+`
				AND NOT (t.open AND t.status IN ('allocated', 'unknown')) AND t.updated_at < now() - $4::interval
			ORDER BY t.nonce LIMIT $5) AS t
		CROSS JOIN LATERAL (`+selectAttempts+` WHERE a.tx_id = t.id AND a.nonce = t.nonce AND a.address = t.relayer_address ORDER BY a.attempt DESC LIMIT 1) AS a
		WHERE NOT a.paused OR f.address = ANY($6)
		ORDER BY t.nonce, t.relayer_address`, s.ChainID, addresses, nonces, age, limit, hexAddresses(atOnce))
}

// ListLowestPending returns the transactions that block their keys: at the given nonces, or, where those are recorded as
// mined, at the lowest later one that is not. Nodes may report too few mined transactions.
func (s *Store) ListLowestPending(ctx context.Context, froms []KeyNonce) ([]*relayer.Transaction, error) {
	addresses, nonces := s.keyNonces(froms)
	return s.list(ctx, "list what holds keys up", `SELECT t.* FROM unnest($2::text[], $3::bigint[]) AS f (address, nonce) CROSS JOIN LATERAL (
		`+selectTransactions+` WHERE chain_id = $1 AND relayer_address = f.address AND nonce >= f.nonce AND open AND status <> 'mined'
		ORDER BY nonce LIMIT 1) AS t
		WHERE t.nonce = f.nonce OR EXISTS (SELECT FROM relayer_txs b WHERE b.chain_id = $1 AND b.relayer_address = f.address AND b.nonce = t.nonce - 1 AND b.generation = `+generationSQL("$1")+`)`,
		s.ChainID, addresses, nonces)
}

// MinedCandidate is a transaction whose nonce the chain has used, and all hashes under which it may be mined.
type MinedCandidate struct {
	ID     uuid.UUID
	Key    common.Address
	Nonce  uint64
	Hashes []common.Hash
}

// ListMinedCandidates returns transactions that are not recorded as mined and whose nonce is below the chain's count; at
// most limit.
func (s *Store) ListMinedCandidates(ctx context.Context, mined []KeyNonce, limit int) ([]MinedCandidate, error) {
	addresses, nonces := s.keyNonces(mined)
	return collect(ctx, s.db, "list what may be mined", func(row pgx.CollectableRow) (c MinedCandidate, err error) {
		var address string
		var hashes []string
		err = row.Scan(&c.ID, &address, &c.Nonce, &hashes)
		c.Key = common.HexToAddress(address)
		for _, hash := range hashes {
			c.Hashes = append(c.Hashes, common.HexToHash(hash))
		}
		return c, err
	}, `SELECT t.id, t.relayer_address, t.nonce,
			ARRAY(SELECT a.tx_hash FROM relayer_attempts a WHERE a.tx_id = t.id AND a.nonce = t.nonce AND a.address = t.relayer_address ORDER BY a.attempt DESC)
		FROM unnest($2::text[], $3::bigint[]) AS m (address, count)
		JOIN relayer_txs t ON t.chain_id = $1 AND t.relayer_address = m.address AND t.nonce < m.count
			AND t.open AND t.nonce IS NOT NULL AND t.status <> 'mined'
		ORDER BY t.nonce LIMIT $4`, s.ChainID, addresses, nonces, limit)
}

// HasWork reports whether the pool has a transaction that is not final, of one of its keys or queued, or nonces that must be
// compared with the nodes' (see [Store.FailedOver]).
func (s *Store) HasWork(ctx context.Context, keys []common.Address) (work bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM relayer_txs WHERE chain_id = $1 AND pool_id = $2 AND open AND nonce IS NULL)
		OR EXISTS (SELECT 1 FROM unnest($3::text[]) AS k (address) CROSS JOIN LATERAL (SELECT 1 FROM relayer_txs t
			WHERE t.chain_id = $1 AND t.relayer_address = k.address AND t.open AND t.nonce IS NOT NULL LIMIT 1) AS t)
		OR EXISTS (SELECT FROM relayer_pools p WHERE chain_id = $1 AND pool_id = $2 AND `+otherHistory+`)`,
		s.ChainID, s.Pool, hexAddresses(keys)).Scan(&work)
	if err != nil {
		return false, fmt.Errorf("look for open transactions: %w", err)
	}
	return work, nil
}

// ListExpired returns transactions past their valid_until that have no intent yet; at most limit.
func (s *Store) ListExpired(ctx context.Context, limit int) ([]*relayer.Transaction, error) {
	return s.list(ctx, "list what expires", selectTransactions+` WHERE open AND valid_until IS NOT NULL AND valid_until <= now()
		AND chain_id = $1 AND pool_id = $2 AND intent = 'send' AND status <> 'mined' ORDER BY valid_until LIMIT $3`, s.ChainID, s.Pool, limit)
}

// Resends selects the rejected attempts that may be sent again.
type Resends struct {
	// LowestOnly are the rejection reasons for which only the lowest nonce of a key is sent again, because nodes would
	// reject the others likewise.
	LowestOnly []string
	// AtOnce are the keys whose rejected attempts are all sent again now, because the reason may have passed.
	AtOnce []common.Address
}

// Unsent returns the latest attempts that no node is recorded to have accepted, and that may be sent again. The records of
// earlier attempts do not matter (see [Store.StoreAttempts]). The bytes of a transaction that is to be replaced by a no-op are left out,
// because no node may have them. The row must not have changed for age. It reads from the
// given nonces on, each key in turn, its lowest first; at most limit.
func (s *Store) Unsent(ctx context.Context, froms []KeyNonce, age time.Duration, resends Resends, limit int) ([]*relayer.Attempt, error) {
	addresses, nonces := s.keyNonces(froms)
	return s.listAttempts(ctx, "list unsent attempts", `SELECT s.* FROM unnest($2::text[], $3::bigint[]) AS f (address, nonce)
		LEFT JOIN LATERAL (SELECT t.nonce FROM relayer_txs t
			WHERE t.chain_id = $1 AND t.relayer_address = f.address AND t.nonce >= f.nonce AND t.open AND t.nonce IS NOT NULL
				AND t.status = 'allocated' AND t.status_reason = ANY($6)
			ORDER BY t.nonce LIMIT 1) AS lowest ON true
		CROSS JOIN LATERAL (SELECT a.* FROM relayer_txs t
			CROSS JOIN LATERAL (`+selectAttempts+` WHERE a.tx_id = t.id AND a.nonce = t.nonce AND a.address = t.relayer_address ORDER BY a.attempt DESC LIMIT 1) AS a
			WHERE t.chain_id = $1 AND t.relayer_address = f.address AND t.nonce >= f.nonce AND t.open AND t.nonce IS NOT NULL
				AND t.status IN ('allocated', 'unknown') AND (t.intent = 'send' OR a.purpose = 'noop')
				AND (f.address = ANY($7) AND a.last_error <> ''
					OR t.updated_at < now() - $4::interval AND NOT a.paused AND (t.status_reason <> ALL($6) OR t.nonce = lowest.nonce))
			ORDER BY t.nonce LIMIT $5) AS s`+roundRobinOrderSQL("s", "address", "$5"),
		s.ChainID, addresses, nonces, age, limit, append([]string{}, resends.LowestOnly...), hexAddresses(resends.AtOnce))
}

// FirstUnsent returns the lowest nonce of each key, from the given ones on, whose latest attempt no node is recorded to
// have accepted. It leaves out keys without one.
func (s *Store) FirstUnsent(ctx context.Context, froms []KeyNonce) (map[common.Address]uint64, error) {
	addresses, nonces := s.keyNonces(froms)
	rows, err := s.db.Query(ctx, `SELECT f.address, lowest.nonce FROM unnest($2::text[], $3::bigint[]) AS f (address, nonce)
		CROSS JOIN LATERAL (SELECT t.nonce FROM relayer_txs t
			WHERE t.chain_id = $1 AND t.relayer_address = f.address AND t.nonce >= f.nonce AND t.open AND t.nonce IS NOT NULL
				AND t.status IN ('allocated', 'unknown')
			ORDER BY t.nonce LIMIT 1) AS lowest`, s.ChainID, addresses, nonces)
	if err != nil {
		return nil, fmt.Errorf("list the first unsent nonces: %w", err)
	}
	first := map[common.Address]uint64{}
	var address string
	var nonce uint64
	if _, err := pgx.ForEachRow(rows, []any{&address, &nonce}, func() error {
		first[common.HexToAddress(address)] = nonce
		return nil
	}); err != nil {
		return nil, fmt.Errorf("list the first unsent nonces: %w", err)
	}
	return first, nil
}

// ListPendingNoops returns transactions whose nonce a no-op shall take, and whose latest attempt is not one. It reads from
// the given nonces on, each key in turn, its lowest first; at most limit.
func (s *Store) ListPendingNoops(ctx context.Context, froms []KeyNonce, limit int) ([]*relayer.Transaction, error) {
	addresses, nonces := s.keyNonces(froms)
	return s.list(ctx, "list what is to be superseded", `SELECT t.* FROM unnest($2::text[], $3::bigint[]) AS f (address, nonce) CROSS JOIN LATERAL (
		`+selectTransactions+` WHERE chain_id = $1 AND relayer_address = f.address AND nonce >= f.nonce AND open AND nonce IS NOT NULL
			AND intent <> 'send' AND status <> 'mined' AND coalesce((SELECT a.purpose FROM relayer_attempts a WHERE a.tx_id = relayer_txs.id
				AND a.nonce = relayer_txs.nonce AND a.address = relayer_txs.relayer_address ORDER BY a.attempt DESC LIMIT 1), '') <> 'noop'
		ORDER BY nonce LIMIT $4) AS t`+roundRobinOrderSQL("t", "relayer_address", "$4"), s.ChainID, addresses, nonces, limit)
}
