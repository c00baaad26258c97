package main

import (
	"context"
	"fmt"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/params"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

// The peers of the product's allocation: each caller has a connection, and does one transaction at a time, like
// services that lock a key in Postgres. Their tables hold the request and the signed bytes, and only the indexes that
// they need.
const plainTables = `
	CREATE TABLE keys (
		chain_id   bigint NOT NULL,
		address    text   NOT NULL,
		next_nonce bigint NOT NULL DEFAULT 0,
		PRIMARY KEY (chain_id, address)
	) WITH (fillfactor = 50);
	CREATE TABLE txs (
		id         uuid   PRIMARY KEY,
		chain_id   bigint NOT NULL,
		address    text   NOT NULL,
		nonce      bigint NOT NULL,
		status     text   NOT NULL,
		caller     text   NOT NULL,
		recipient  text,
		value_wei  numeric(78, 0) NOT NULL,
		data       bytea  NOT NULL,
		gas_limit  bigint NOT NULL,
		speed      text   NOT NULL,
		tx_hash    text,
		raw        bytea,
		created_at timestamptz NOT NULL DEFAULT now(),
		UNIQUE (chain_id, address, nonce)
	)`

const transferGas = params.TxGas

// plainKey is a key of the peers.
type plainKey struct {
	number  int // of its lock
	address string
	signer  signer.Signer
}

// plainOf returns a form from a function that does one transaction on a connection.
func plainOf(do func(context.Context, *pgx.Conn, *plainKey) error) func(context.Context, string, int, int) (allocate, func(), error) {
	return func(ctx context.Context, url string, keys, callers int) (allocate, func(), error) {
		ring, err := newRing(keys)
		if err != nil {
			return nil, nil, err
		}
		conns := make([]*pgx.Conn, callers)
		end := func() {
			for _, conn := range conns {
				if conn != nil {
					_ = conn.Close(context.WithoutCancel(ctx)) // no data is lost
				}
			}
		}
		for i := range conns {
			if conns[i], err = pgx.Connect(ctx, url); err != nil {
				end()
				return nil, nil, err
			}
		}
		if _, err := conns[0].Exec(ctx, plainTables); err != nil {
			end()
			return nil, nil, err
		}
		held := make([]*plainKey, keys)
		for i, address := range ring.Addresses() {
			signer, _ := ring.Signer(address)
			held[i] = &plainKey{number: i, address: strings.ToLower(address.Hex()), signer: signer}
			if _, err := conns[0].Exec(ctx, "INSERT INTO keys (chain_id, address) VALUES ($1, $2)", chainID, held[i].address); err != nil {
				end()
				return nil, nil, err
			}
		}
		return func(ctx context.Context, caller int) (int, error) {
			// Each caller uses one key: this minimizes waiting between callers.
			return 1, do(ctx, conns[caller], held[caller%keys])
		}, end, nil
	}
}

// insertTx takes the nonce from the preceding statement.
const insertTx = ` INSERT INTO txs (id, chain_id, address, nonce, status, caller, recipient, value_wei, data, gas_limit, speed) `

const storeRaw = `UPDATE txs SET tx_hash = $2, raw = $3 WHERE id = $1`

// sixTrips does everything in one database transaction under the key's advisory lock.
func sixTrips(ctx context.Context, conn *pgx.Conn, key *plainKey) error {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(key.number)); err != nil {
		return err
	}
	var nonce int64
	err := conn.QueryRow(ctx, "SELECT coalesce(max(nonce) + 1, 0) FROM txs WHERE chain_id = $1 AND address = $2", chainID, key.address).Scan(&nonce)
	if err != nil {
		return err
	}
	id := uuid.Must(uuid.NewV7())
	_, err = conn.Exec(ctx, insertTx+"VALUES ($1, $2, $3, $4, 'allocated', 'bench', $5, $6, '', $7, 'fast')",
		id, chainID, key.address, nonce, strings.ToLower(anybody.Hex()), "1", transferGas)
	if err != nil {
		return err
	}
	if err := key.store(ctx, conn, id, uint64(nonce)); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "COMMIT")
	return err
}

// twoStatements claims and inserts in one statement, which commits by itself and so locks the key for the shortest
// time. It stores the signed bytes in another.
func twoStatements(ctx context.Context, conn *pgx.Conn, key *plainKey) error {
	id := uuid.Must(uuid.NewV7())
	var nonce int64
	err := conn.QueryRow(ctx, `WITH claimed AS (
			UPDATE keys SET next_nonce = next_nonce + 1 WHERE chain_id = $2 AND address = $3 RETURNING next_nonce - 1 AS nonce)
		`+insertTx+`SELECT $1, $2, $3, nonce, 'allocated', 'bench', $4, $5, '', $6, 'fast' FROM claimed RETURNING nonce`,
		id, chainID, key.address, strings.ToLower(anybody.Hex()), "1", transferGas).Scan(&nonce)
	if err != nil {
		return err
	}
	return key.store(ctx, conn, id, uint64(nonce))
}

// store signs like the product, and stores the result.
func (k *plainKey) store(ctx context.Context, conn *pgx.Conn, id uuid.UUID, nonce uint64) error {
	tip := fees.Tips[0]
	signed, err := signTransfer(ctx, k.signer, nonce, tip, new(big.Int).Add(new(big.Int).Lsh(fees.BaseFee, 1), tip))
	if err != nil {
		return err
	}
	tag, err := conn.Exec(ctx, storeRaw, id, signed.Hash.Hex(), signed.Raw)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows were updated where one was meant", tag.RowsAffected())
	}
	return err
}

// signTransfer signs the transaction of all contenders: a transfer of one wei.
func signTransfer(ctx context.Context, key signer.Signer, nonce uint64, tip, fee *big.Int) (signer.Signed, error) {
	id := big.NewInt(chainID)
	return signer.SignRaw(ctx, key, types.NewTx(&types.DynamicFeeTx{
		ChainID: id, Nonce: nonce, To: &anybody, Value: common.Big1, Gas: transferGas, GasFeeCap: fee, GasTipCap: tip,
	}), id)
}
