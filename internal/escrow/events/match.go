package events

import (
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
)

// Log is a log of a block, in the block's order. Logs with other topics may be missing between two.
type Log struct {
	Contract common.Address
	Topics   []common.Hash // at most four
	Data     []byte
	Tx       common.Hash
	// Index is the node's. It orders nothing: nodes repeat it, or count it in other ways.
	Index uint64
}

// ID identifies an event, whichever block has it.
type ID struct {
	Chain    uint64
	Tx       common.Hash
	Contract common.Address
	Topic    common.Hash
	// N is the place among the logs of the contract with the topic in the transaction, from 0.
	N int
}

// String returns the id as consumers get it: chain:tx:contract:topic0:n.
func (id ID) String() string {
	return fmt.Sprintf("%d:%s:%#x:%s:%d", id.Chain, id.Tx, id.Contract, id.Topic, id.N)
}

// Occurrence is an event in a block.
type Occurrence struct {
	ID     ID
	Event  *Event
	Escrow common.Address
	Args   Args
	Index  uint64 // the log's
}

// Fact returns the address in an argument; nil if the event has no such argument.
func (o *Occurrence) Fact(arg string) *common.Address {
	if arg == "" {
		return nil
	}
	return new(common.HexToAddress(o.Args.Get(arg)))
}

// Amount returns the amount that the event gives its escrow; nil if it gives none.
func (o *Occurrence) Amount() *big.Int {
	n, ok := new(big.Int).SetString(o.Args.Get(o.Event.Amount), 10)
	if !ok {
		return nil
	}
	return n
}

// Parked is a log of a watched contract with a watched topic0 that does not decode.
type Parked struct {
	ID     ID
	Escrow *common.Address // nil: a factory's, so that the escrow is not known
	Log    Log
	Reason string
}

// Watched reports which contracts of a chain are factories, and which are escrows of earlier blocks.
type Watched interface {
	Factory(common.Address) bool
	Escrow(common.Address) bool
}

// Match returns the events among the logs of a block, in the block's order, and the logs that do not decode. It finds the escrows that
// the block creates before it matches their logs, which may precede those of the factory.
func (s *Set) Match(chain uint64, logs []Log, watched Watched) (found []Occurrence, parked []Parked) {
	created := map[common.Address]bool{}
	decoded := make([]struct {
		o   *Occurrence
		err error
	}, len(logs)) // as events of factories
	for i := range logs {
		l := &logs[i]
		if len(l.Topics) == 0 || !watched.Factory(l.Contract) {
			continue
		}
		d := &decoded[i]
		if d.o, d.err = s.occurrence(Factory, l); d.err == nil && d.o != nil {
			created[d.o.Escrow] = true
		}
	}
	places := map[ID]int{}
	for i := range logs {
		l := &logs[i]
		if len(l.Topics) == 0 {
			continue
		}
		id := ID{Chain: chain, Tx: l.Tx, Contract: l.Contract, Topic: l.Topics[0]}
		place := id
		id.N = places[place]
		places[place]++
		for _, role := range [...]Role{Factory, Escrow} {
			if role == Factory && !watched.Factory(l.Contract) || role == Escrow && !watched.Escrow(l.Contract) && !created[l.Contract] {
				continue
			}
			o, err := decoded[i].o, decoded[i].err
			if role == Escrow {
				o, err = s.occurrence(Escrow, l)
			}
			switch {
			case err != nil:
				p := Parked{ID: id, Log: *l, Reason: err.Error()}
				if role == Escrow {
					p.Escrow = &l.Contract
				}
				parked = append(parked, p)
			case o != nil:
				o.ID, o.Index = id, l.Index
				found = append(found, *o)
			default:
				continue
			}
			break // a factory that is an escrow, too, emits one event by one log
		}
	}
	return found, parked
}

// Created returns the escrow that a log of a factory creates. It returns false if the log is no event of the set, or does not decode.
func (s *Set) Created(l *Log) (common.Address, bool) {
	if len(l.Topics) == 0 {
		return common.Address{}, false
	}
	o, err := s.occurrence(Factory, l)
	if err != nil || o == nil {
		return common.Address{}, false
	}
	return o.Escrow, true
}

// occurrence decodes a log as an event of a role, without its id; nil if the set has none with the topic0.
func (s *Set) occurrence(role Role, l *Log) (*Occurrence, error) {
	layouts := s.byRole[role][l.Topics[0]]
	if len(layouts) == 0 {
		return nil, nil
	}
	for _, e := range layouts {
		if len(e.indexed) != len(l.Topics)-1 {
			continue
		}
		args, err := e.decode(l.Topics, l.Data)
		if err != nil {
			return nil, err
		}
		o := &Occurrence{Event: e, Escrow: l.Contract, Args: args}
		if role == Factory {
			o.Escrow = *o.Fact(e.Escrow)
		}
		return o, nil
	}
	return nil, fmt.Errorf("%d indexed arguments: %w", len(l.Topics)-1, errTopics)
}
