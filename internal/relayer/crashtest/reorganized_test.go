package crashtest

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// anchorDepth is the default of RELAYER_ANCHOR_DEPTH, and finalDepth the number of confirmations in these scenes.
const anchorDepth, finalDepth = 64, 8

// shorterBy is how many blocks a shorter branch is below the anchor when it begins.
const shorterBy = 64

// reorganization is the reorganization of a scene while clients post.
type reorganization struct {
	depth uint64
	times int
	hits  int
	// kills: relayers are killed while the chain is reorganized, and while they take back transactions.
	kills bool
	// interrupted: the operator's command is killed half-way, and run again.
	interrupted bool
	// shorter: the other branch is shorter than the recorded anchor when the operator's command runs.
	shorter bool
}

func (r reorganization) deep() bool { return r.depth > anchorDepth }

// archive returns geth's arguments for a block per transaction, and for keeping the states of all blocks.
func archive() []string {
	return append(pool(100_000), "--dev.period", "0", "--state.scheme", "hash", "--gcmode", "archive")
}

func (sc *scene) head() uint64 {
	sc.t.Helper()
	n, err := sc.node.Client().BlockNumber(sc.t.Context())
	require.NoError(sc.t, err)
	return n
}

// mine makes a block. Blocks with different amounts differ, even if their times do not.
func (sc *scene) mine(wei int64) { sc.node.Fund(big.NewInt(wei), sc.node.Accounts[0].Address) }

// until makes blocks until a condition is true.
func (sc *scene) until(within time.Duration, condition func() bool, what string, args ...any) {
	sc.t.Helper()
	for deadline := time.Now().Add(within); !condition(); sc.mine(1) {
		require.True(sc.t, time.Now().Before(deadline), "%s: not within %v", fmt.Sprintf(what, args...), within)
	}
}

// anchor returns the block by which the chain is recognized.
func (v *truth) anchor() (number uint64, hash string) {
	v.t.Helper()
	require.NoError(v.t, v.db.QueryRow(v.t.Context(), `SELECT anchor_number, anchor_hash FROM relayer_chains`).Scan(&number, &hash))
	return number, hash
}

// minedAbove counts transactions in blocks above the given one, and the final ones among them.
func (v *truth) minedAbove(block uint64) (all, finals int) {
	v.t.Helper()
	require.NoError(v.t, v.db.QueryRow(v.t.Context(), `SELECT count(*), count(*) FILTER (WHERE NOT open) FROM relayer_txs
		WHERE block_number > $1 AND kind = 'transaction'`, int64(block)).Scan(&all, &finals))
	return all, finals
}

// standStill freezes the relayers until the returned function is called, and waits for the blocks of sent transactions.
// So no further block makes a reorganization deeper than intended.
func (sc *scene) standStill() (thaw func()) {
	sc.t.Helper()
	for _, m := range sc.fleet {
		m.freeze()
	}
	eventually(sc.t, patience, func() bool {
		var pool struct{ Pending string }
		require.NoError(sc.t, sc.node.Client().Client().CallContext(sc.t.Context(), &pool, "txpool_status"))
		return pool.Pending == "0x0"
	}, "no blocks")
	return func() {
		for _, m := range sc.fleet {
			m.thaw()
		}
	}
}

// reorganize makes the chain forget its blocks above the fork, with their transactions, and grow on another branch.
func (sc *scene) reorganize(r reorganization, turn int64) (vanished, finals int) {
	sc.t.Helper()
	v := sc.truth()
	fork, was, thaw := sc.head(), uint64(0), func() {}
	// Each transaction that relayers send before they notice makes a block: these must not reach the anchor.
	room := uint64(0)
	if r.shorter {
		room = shorterBy
	}
	if r.deep() {
		sc.until(patience, func() bool {
			vanished, finals = v.minedAbove(fork)
			was, _ = v.anchor()
			return sc.head() >= fork+r.depth && finals > 0 && was > fork+room
		}, "no %d blocks with final transactions above block %d", r.depth, fork)
		was = max(was, sc.head())
	} else {
		eventually(sc.t, patience, func() bool {
			thaw()
			thaw = sc.standStill()
			was = sc.head()
			fork = was - r.depth
			vanished, finals = v.minedAbove(fork)
			return vanished > 0 && (r.depth < finalDepth || finals > 0)
		}, "no transactions in the last %d blocks", r.depth)
	}
	sc.node.SetHead(fork)
	thaw()
	if r.kills { // probably the process that follows the chain
		sc.fleet[0].kill()
		defer sc.fleet[0].start()
	}
	sc.mine(turn + 2)
	for !r.shorter && sc.head() <= was+1 {
		sc.mine(turn + 2)
	}
	return vanished, finals
}

// poll makes clients read statuses until ctx ends, or the returned function is called.
func (sc *scene) poll(ctx context.Context, l *load) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var polls sync.WaitGroup
	for i := range pollers {
		random := rand.New(rand.NewPCG(*seed, uint64(3+i)))
		polls.Go(func() { l.poll(ctx, random) })
	}
	return func() { cancel(); polls.Wait() }
}

// followed makes blocks until all records are of blocks of the chain, and webhooks have reported the changes. It
// returns the time of that: reports that arrive later must not be taken back.
func (sc *scene) followed() time.Time {
	sc.t.Helper()
	v := sc.truth()
	sc.until(patience, func() bool {
		rows, err := v.db.Query(sc.t.Context(), `SELECT DISTINCT block_number, block_hash FROM relayer_txs WHERE block_hash IS NOT NULL`)
		require.NoError(sc.t, err)
		var number int64
		var hash string
		there := true
		_, err = pgx.ForEachRow(rows, []any{&number, &hash}, func() error {
			header, err := v.chain.HeaderByNumber(sc.t.Context(), big.NewInt(number))
			there = there && err == nil && header.Hash().Hex() == hash
			return nil
		})
		require.NoError(sc.t, err)
		return there
	}, "transactions stay recorded in blocks that are gone")
	var now time.Time
	require.NoError(sc.t, v.db.QueryRow(sc.t.Context(), `SELECT clock_timestamp()`).Scan(&now))
	eventually(sc.t, patience, func() bool {
		var due int
		err := v.db.QueryRow(sc.t.Context(), `SELECT count(*) FROM relayer_webhooks WHERE state = 'waiting' AND created_at <= $1`, now).Scan(&due)
		return err == nil && due == 0
	}, "webhooks are not delivered")
	return time.Now()
}

// underReorganization posts hits while the chain is reorganized, and checks that each is executed once.
//
// A reorganization above the anchor needs no operator, and takes no final status back. A deeper one stops all relayers
// until `rollcall keys resync --reorganized` has completed. Then each accepted transaction is executed once, under the
// nonce and with the record in the store.
func (sc *scene) underReorganization(r reorganization) {
	t := sc.t
	t.Helper()
	v := sc.truth()
	length := sc.head() + r.depth + 8 // the blocks that made the contract and funded the keys stay
	if r.deep() {
		length = 2*anchorDepth + 16 // the anchor of a young chain is less deep
	}
	sc.until(patience, func() bool { return sc.head() >= length }, "the chain stays short")
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var hits []*hit
	var over time.Time // end of the last reorganization and of everything that it takes back
	for turn := range r.times {
		l := sc.load(r.hits)
		l.clients, l.pace = 8, 40*time.Millisecond
		hits = append(hits, l.hits...)
		defer sc.poll(ctx, l)()
		posted := make(chan struct{})
		random := rand.New(rand.NewPCG(*seed, uint64(turn+10)))
		go func() { defer close(posted); l.run(ctx, random) }()
		line, at := sc.turn(r, int64(turn))
		over = at
		sc.until(2*patience, func() bool {
			select {
			case <-posted:
				return v.underWay() == 0
			default:
				return false
			}
		}, "not everything is final: %s", l.summary())
		t.Logf("%s; %s", line, l.summary())
	}
	v.settled(patience)
	stored := v.executed(hits)
	v.keys(false)
	v.records()
	v.delivered(patience)
	require.Empty(t, sc.reports.contradictions(v.outcomes(), over), "reports that the chain, the store or later reports contradict")
	sc.fleet.stop()
	t.Logf("%d hits executed once; %s; %s\n%s", stored, v.extras(), sc.reports.summary(), sc.fleet.usage())
}

// turn runs one reorganization to its end.
func (sc *scene) turn(r reorganization, turn int64) (line string, over time.Time) {
	sc.t.Helper()
	vanished, finals := sc.reorganize(r, turn)
	line = fmt.Sprintf("%d vanished, %d of them final", vanished, finals)
	if r.depth < finalDepth {
		return line, sc.followed()
	}
	require.NotZero(sc.t, finals, "no final transaction has lost its block")
	if r.deep() {
		const deep, shorter = "`rollcall keys resync --reorganized`", "they are syncing, or the chain was reset"
		if r.shorter {
			sc.refuse(shorter)
		} else {
			sc.refuse(deep)
		}
		if r.interrupted {
			line += fmt.Sprintf(", %d taken back by a command that was killed", sc.interrupt())
			sc.refuse(deep, shorter) // a shorter branch may have grown above the anchor meanwhile
		}
	}
	taken := sc.takeBack()
	line += fmt.Sprintf(", %d taken back", taken)
	require.NotZero(sc.t, taken)
	if r.kills { // a relayer that sends again what was taken back
		m := sc.fleet[1+int(turn)%(len(sc.fleet)-1)]
		m.kill()
		m.start()
	}
	return line, sc.followed()
}

// A reorganization of three blocks needs no operator, and one of 70 blocks needs the operator's command.
func TestReorganization_UnderLoad_EachIsExecutedOnce(t *testing.T) {
	for _, r := range []reorganization{{depth: 3, times: 2, hits: 40}, {depth: 70, times: 1, hits: 100, interrupted: true}} {
		t.Run(strconv.FormatUint(r.depth, 10), func(t *testing.T) {
			t.Parallel()
			sc := open(t, setting{keys: 3, relayers: 2, inFlight: 64, confirmations: finalDepth, geth: archive()})
			sc.underReorganization(r)
		})
	}
}
