package events

import (
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Block is a block of a chain.
type Block struct {
	Number uint64
	Hash   common.Hash
	Parent common.Hash
	Time   time.Time // to the second
}

// Account is an escrow as the registry has it.
type Account struct {
	Address common.Address
	// Sequence is that of the escrow's last message; 0 before the first.
	Sequence int64
	// Created is the number of the block with the event of the factory; nil while no block of the chain has one.
	Created *uint64
	State   State
	// Payer, Payee and Amount are those of the latest event that has them; nil if none has.
	Payer, Payee *common.Address
	Amount       *big.Int
}

// Ledger decides the messages of one step of a chain: blocks that were removed, added or became final. It is given the accounts and the
// last messages of the events that the step touches, and changes them. The methods are called in this order: Retract for each event of the
// removed blocks, the newest first; then Add, in the order of the chain; then Finalize, in the order of the chain. So the messages of an
// escrow behave as a stack: a retraction takes back the newest standing event, and the oldest pending one becomes final first.
type Ledger struct {
	Chain uint64
	// Accounts has the escrows of the step. The ledger adds those that the step creates.
	Accounts map[common.Address]*Account
	// Last has the last message of each event of the step that has one, by its id.
	Last map[string]*Message
	// Messages are the results, in order.
	Messages []*Message
	// Late marks the messages of added events.
	Late bool
	// Repeated is how many events were added that the ledger had already, in the same block.
	Repeated int
}

// Retract takes back a pending event, whose block was removed.
func (l *Ledger) Retract(id string) error {
	last := l.Last[id]
	if last == nil || last.Status != Pending {
		return fmt.Errorf("retract event %s: it is not pending", id)
	}
	l.report(*last, Retracted)
	return nil
}

// Abandon takes back a standing event, also a final one: an operator has accepted a chain that contradicts a final block.
func (l *Ledger) Abandon(id string) error {
	last := l.Last[id]
	if last == nil || last.Status == Retracted {
		return fmt.Errorf("abandon event %s: it does not stand", id)
	}
	l.report(*last, Retracted)
	return nil
}

// Finalize reports that the block of a pending event is final.
func (l *Ledger) Finalize(id string) error {
	last := l.Last[id]
	if last == nil || last.Status != Pending {
		return fmt.Errorf("finalize event %s: it is not pending", id)
	}
	l.report(*last, Final)
	return nil
}

// Add adds an event of a new block as pending or final.
func (l *Ledger) Add(b Block, o *Occurrence, status Status) error {
	id := o.ID.String()
	last := l.Last[id]
	switch {
	case last == nil || last.Status == Retracted:
	case last.BlockHash == b.Hash:
		l.Repeated++
		return nil
	default:
		return fmt.Errorf("add event %s of block %d %s: it is %s in block %d %s", id, b.Number, b.Hash, last.Status, last.BlockNumber, last.BlockHash)
	}
	m := Message{
		Envelope: Envelope{EventID: id, Type: o.Event.Name, ChainID: l.Chain, Escrow: o.Escrow}, Contract: o.ID.Contract, BlockNumber: b.Number, BlockHash: b.Hash,
		BlockTime: b.Time.UTC(), TxHash: o.ID.Tx, LogIndex: o.Index, Args: o.Args, Late: l.Late,
	}
	if last != nil {
		m.Revision = last.Revision
	}
	l.report(m, status)
	l.account(o.Escrow).apply(b, o)
	return nil
}

// report adds the next message of an event.
func (l *Ledger) report(m Message, status Status) {
	account := l.account(m.Escrow)
	account.Sequence++
	m.Status, m.Revision, m.Sequence, m.Replay = status, m.Revision+1, account.Sequence, false
	l.Last[m.EventID] = &m
	l.Messages = append(l.Messages, &m)
}

// account returns the account of an escrow.
func (l *Ledger) account(a common.Address) *Account {
	account := l.Accounts[a]
	if account == nil {
		account = &Account{Address: a}
		l.Accounts[a] = account
	}
	return account
}

// apply takes the facts of an event.
func (a *Account) apply(b Block, o *Occurrence) {
	e := o.Event
	if e.Role == Factory && a.Created == nil {
		a.Created = &b.Number
	}
	if e.State != "" {
		a.State = e.State
	}
	if payer := o.Fact(e.Payer); payer != nil {
		a.Payer = payer
	}
	if payee := o.Fact(e.Payee); payee != nil {
		a.Payee = payee
	}
	if amount := o.Amount(); amount != nil {
		a.Amount = amount
	}
}

// Restate sets the facts of an account to those of its standing events, in the order of the chain, after some were retracted. The
// sequence stays.
func (l *Ledger) Restate(escrow common.Address, s *Set, standing []*Message) {
	account := l.account(escrow)
	*account = Account{Address: escrow, Sequence: account.Sequence}
	for _, m := range standing {
		if e := s.event(m); e != nil {
			o := &Occurrence{Event: e, Escrow: m.Escrow, Args: m.Args}
			account.apply(Block{Number: m.BlockNumber}, o)
		}
	}
}

// event returns the event of a message; nil if the set has none.
func (s *Set) event(m *Message) *Event {
	for _, e := range s.events {
		if e.Name != m.Type || (e.Role == Escrow) != (m.Contract == m.Escrow) || len(e.inputs) != len(m.Args) {
			continue
		}
		same := true
		for i, in := range e.inputs {
			same = same && in.Name == m.Args[i].Name
		}
		if same {
			return e
		}
	}
	return nil
}
