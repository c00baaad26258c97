package events

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
)

// consumer checks the messages that it receives, as any consumer could.
type consumer struct {
	t        *testing.T
	sequence map[common.Address]int64
	revision map[string]int
	standing map[common.Address][]*Message // not retracted, in the order of arrival
	finals   map[common.Address]int        // of standing, from the first on
}

func (c *consumer) receive(m *Message) {
	c.sequence[m.Escrow]++
	require.Equal(c.t, c.sequence[m.Escrow], m.Sequence, "sequence of %s", m.EventID)
	require.Equal(c.t, c.revision[m.EventID]+1, m.Revision, "revision of %s", m.EventID)
	c.revision[m.EventID]++
	stack := c.standing[m.Escrow]
	at := slices.IndexFunc(stack, func(s *Message) bool { return s.EventID == m.EventID })
	switch m.Status {
	case Retracted:
		require.NotEmpty(c.t, stack)
		require.Equal(c.t, len(stack)-1, at, "a retraction takes back the newest")
		require.Equal(c.t, stack[at].BlockHash, m.BlockHash)
		require.GreaterOrEqual(c.t, at, c.finals[m.Escrow], "a final event stays")
		c.standing[m.Escrow] = stack[:at]
	case Final:
		if at < 0 {
			require.Len(c.t, stack, c.finals[m.Escrow], "final at once only without pending ones before")
			at, c.standing[m.Escrow] = len(stack), append(stack, m)
		}
		require.Equal(c.t, c.finals[m.Escrow], at, "the oldest becomes final first")
		require.Equal(c.t, c.standing[m.Escrow][at].BlockHash, m.BlockHash)
		c.finals[m.Escrow]++
	case Pending:
		require.Negative(c.t, at, "an event that is mined again was retracted before")
		c.standing[m.Escrow] = append(stack, m)
	}
}

// E8 and E9: random chains with reorganizations: a consumer that applies the messages has the events of the chain, whatever happened before.
func TestLedger_RandomChains_ConsumerHasTheChain(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		type block struct {
			Block
			found []Occurrence
		}
		var chain []block
		final, made := -1, 0
		set := BuiltIn()
		l := &Ledger{Chain: 1, Accounts: map[common.Address]*Account{}, Last: map[string]*Message{}}
		c := &consumer{t, map[common.Address]int64{}, map[string]int{}, map[common.Address][]*Message{}, map[common.Address]int{}}
		mine := func() {
			made++
			b := block{Block: Block{Number: uint64(len(chain)), Hash: common.BigToHash(big.NewInt(int64(made))), Time: time.Unix(int64(made), 0)}}
			var logs []Log
			for range r.IntN(4) {
				l := approved(t, payer)
				l.Contract = common.Address{byte(1 + r.IntN(3))}
				l.Tx = common.Hash{byte(r.IntN(20)), byte(len(chain))} // the same transactions come again on another branch
				if r.IntN(3) == 0 {
					l.Contract, l.Topics, l.Data = factory, deployed(t, l.Contract).Topics, deployed(t, l.Contract).Data
				}
				logs = append(logs, l)
			}
			escrows := []common.Address{{1}, {2}, {3}}
			found, parked := set.Match(1, logs, watched{[]common.Address{factory}, escrows})
			require.Empty(t, parked)
			b.found = found
			chain = append(chain, b)
		}
		for range 60 {
			l.Messages = nil
			if r.IntN(4) == 0 { // a reorganization
				to := final + 1 + r.IntN(len(chain)-final)
				for i := len(chain) - 1; i >= to; i-- {
					for _, o := range slices.Backward(chain[i].found) {
						require.NoError(t, l.Retract(o.ID.String()))
					}
				}
				chain = chain[:to]
			}
			for range 1 + r.IntN(3) {
				mine()
				b := &chain[len(chain)-1]
				// Only a block without pending ones before may be final at once.
				status := Pending
				if final == len(chain)-2 && r.IntN(2) == 0 {
					status, final = Final, len(chain)-1
				}
				for i := range b.found {
					require.NoError(t, l.Add(b.Block, &b.found[i], status))
					require.NoError(t, l.Add(b.Block, &b.found[i], status)) // a repetition changes nothing
				}
			}
			for final < len(chain)-1 && r.IntN(2) == 0 {
				final++
				for _, o := range chain[final].found {
					require.NoError(t, l.Finalize(o.ID.String()))
				}
			}
			for _, m := range l.Messages {
				c.receive(m)
			}
		}
		want := map[common.Address][]string{}
		for _, b := range chain {
			for _, o := range b.found {
				want[o.Escrow] = append(want[o.Escrow], o.ID.String()+" "+b.Hash.Hex())
			}
		}
		for escrow, account := range l.Accounts {
			var got []string
			for _, m := range c.standing[escrow] {
				got = append(got, m.EventID+" "+m.BlockHash.Hex())
			}
			require.Equal(t, want[escrow], got, "seed %d", seed)
			require.Equal(t, c.sequence[escrow], account.Sequence)
			l.Restate(escrow, set, c.standing[escrow])
			created := slices.ContainsFunc(c.standing[escrow], func(m *Message) bool { return m.Type == "EscrowDeployed" })
			require.Equal(t, created, account.Created != nil)
			require.Equal(t, created, account.State == Active)
		}
		require.Positive(t, l.Repeated)
	}
}

func TestLedger_Life_SetsTheAccount(t *testing.T) {
	t.Parallel()
	set := BuiltIn()
	released := emit(t, escrow, escrowchain.EscrowABI(), "EscrowReleased", payee, big.NewInt(5), big.NewInt(6))
	found, _ := set.Match(1, []Log{created(t), deployed(t, escrow), released}, watched{factories: []common.Address{factory}})
	l := &Ledger{Chain: 1, Accounts: map[common.Address]*Account{}, Last: map[string]*Message{}}
	b := Block{Number: 7, Hash: common.Hash{7}, Time: time.Unix(8, 0)}
	for i := range found {
		require.NoError(t, l.Add(b, &found[i], Pending))
	}
	want := &Account{Address: escrow, Sequence: 3, Created: new(uint64(7)), State: Released, Payer: &payer, Payee: &payee, Amount: big.NewInt(5)}
	require.Equal(t, want, l.Accounts[escrow])
	require.NoError(t, l.Retract(found[2].ID.String()))
	l.Restate(escrow, set, l.Messages[:2])
	want.Sequence, want.State = 4, Active
	require.Equal(t, want, l.Accounts[escrow])
	m := l.Messages[3]
	require.Equal(t, Retracted, m.Status)
	require.Equal(t, 2, m.Revision)
	require.Equal(t, b.Hash, m.BlockHash)
	require.Equal(t, int64(4), m.Sequence)
}

func TestLedger_Impossible_Refused(t *testing.T) {
	t.Parallel()
	found, _ := BuiltIn().Match(1, []Log{approved(t, payer)}, watched{escrows: []common.Address{escrow}})
	id := found[0].ID.String()
	l := &Ledger{Chain: 1, Accounts: map[common.Address]*Account{}, Last: map[string]*Message{}}
	require.ErrorContains(t, l.Retract(id), "not pending")
	require.ErrorContains(t, l.Finalize(id), "not pending")
	require.NoError(t, l.Add(Block{Number: 1, Hash: common.Hash{1}}, &found[0], Final))
	require.ErrorContains(t, l.Add(Block{Number: 2, Hash: common.Hash{2}}, &found[0], Final), "it is final in block 1")
	require.ErrorContains(t, l.Retract(id), "not pending")
	require.Len(t, l.Messages, 1)
}
