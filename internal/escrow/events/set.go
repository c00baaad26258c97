package events

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
)

// Role is the kind of contract that emits an event.
type Role string

// The roles.
const (
	Factory Role = "factory"
	Escrow  Role = "escrow"
)

// State is the state of an escrow.
type State string

// The states. An event may leave the state as it is.
const (
	Active   State = "active"
	Released State = "released"
	Refunded State = "refunded"
)

// Event is an event of one layout.
type Event struct {
	Role      Role
	Name      string // without the signature: the type of its messages
	Signature string // such as Approved(address)
	Topic     common.Hash
	// Escrow is the argument that holds the address of the escrow; of a factory's event only.
	Escrow string
	// State is the state of the escrow afterwards; "" for no change.
	State State
	// Payer, Payee and Amount are the arguments with these facts about the escrow; "" for none.
	Payer, Payee, Amount string

	inputs, plain abi.Arguments // all, and those that are not indexed
	indexed       abi.Arguments
}

// Set is a set of events. It is immutable.
type Set struct {
	events []*Event // in the order of their texts
	byRole map[Role]map[common.Hash][]*Event
	topics []common.Hash
}

// newSet returns the set of events, which differ in role, topic0 or number of indexed arguments.
func newSet(all []*Event) *Set {
	s := &Set{events: slices.SortedFunc(slices.Values(all), func(a, b *Event) int { return cmp.Compare(a.String(), b.String()) })}
	s.byRole = map[Role]map[common.Hash][]*Event{Factory: {}, Escrow: {}}
	topics := map[common.Hash]bool{}
	for _, e := range s.events {
		s.byRole[e.Role][e.Topic] = append(s.byRole[e.Role][e.Topic], e)
		topics[e.Topic] = true
	}
	s.topics = slices.SortedFunc(maps.Keys(topics), common.Hash.Cmp)
	return s
}

// Topics returns the topic0 of all events, in a fixed order.
func (s *Set) Topics() []common.Hash { return slices.Clone(s.topics) }

// String returns the set in a form that is equal for sets with the same meaning: a line for each event.
func (s *Set) String() string {
	lines := make([]string, len(s.events))
	for i, e := range s.events {
		lines[i] = e.String()
	}
	return strings.Join(lines, "\n")
}

// String returns the event with all that decides its messages.
func (e *Event) String() string {
	inputs := make([]string, len(e.inputs))
	for i, in := range e.inputs {
		inputs[i] = in.Type.String()
		if in.Indexed {
			inputs[i] += " indexed"
		}
		inputs[i] += " " + in.Name
	}
	words := []string{string(e.Role), e.Name + "(" + strings.Join(inputs, ", ") + ")"}
	for _, fact := range [][2]string{{"escrow", e.Escrow}, {"status", string(e.State)}, {"payer", e.Payer}, {"payee", e.Payee}, {"amount", e.Amount}} {
		if fact[1] != "" {
			words = append(words, fact[0]+"="+fact[1])
		}
	}
	return strings.Join(words, " ")
}
