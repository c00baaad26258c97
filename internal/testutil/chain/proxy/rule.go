package proxy

import (
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
)

// Call is one JSON-RPC call, as rules see it.
type Call struct {
	Method string
	Params json.RawMessage
	// N counts the calls that this rule's methods have matched so far, this one included: for scripts.
	N uint64
}

// Tx is what an eth_sendRawTransaction sends; nil for any other call, and for what cannot be decoded.
func (c Call) Tx() *types.Transaction {
	var params []hexutil.Bytes
	if c.Method != "eth_sendRawTransaction" || json.Unmarshal(c.Params, &params) != nil || len(params) == 0 {
		return nil
	}
	tx := new(types.Transaction)
	if tx.UnmarshalBinary(params[0]) != nil {
		return nil
	}
	return tx
}

// Kind is what a fault does.
type Kind int

// The kinds of fault.
const (
	// Refuse answers with an error, and the node sees nothing.
	Refuse Kind = iota + 1
	// Status answers with an HTTP status, 503 by default, and the node sees nothing.
	Status
	// Cut resets the connection, and the node sees nothing.
	Cut
	// Lose resets the connection once the node has answered.
	Lose
	// Hang lets the node answer, and the caller wait until it gives up.
	Hang
	// Omit lets the node answer, and leaves the answer out: of a batch, or it is an empty one.
	Omit
	// Garble answers with what is no JSON, once the node has answered.
	Garble
	// Truncate answers with the first half, once the node has answered.
	Truncate
	// Delay passes the call on later, also when the caller has given up meanwhile: the node takes it all the same.
	Delay
	// Answer answers with the fault's Result, and the node sees nothing.
	Answer
	// Change passes the call on with the parameters that the fault's Params returns, and the node's result as its Alter returns it.
	Change
)

// Fault is what happens to a call.
type Fault struct {
	Kind Kind
	// Code is the error's of a Refuse, -32000 by default, or the HTTP status.
	Code int
	// Message is the error's of a Refuse; "refused" by default.
	Message string
	// Result is the JSON of an Answer.
	Result string
	// Params returns other parameters of a Change, and Alter another result; nil leaves them as they are.
	Params, Alter func(json.RawMessage) json.RawMessage
	// RetryAfter goes with a Status, in seconds; 0 for none.
	RetryAfter int
	// Delay is how long a Delay takes.
	Delay time.Duration
}

// Rule has a fault strike some calls.
type Rule struct {
	// Name is what it is counted under.
	Name string
	// Methods are those it concerns; any by default.
	Methods []string
	// When, if there is one, says which of their calls: by their content, or by their number. It must not block.
	When func(Call) bool
	// Probability that it then strikes, in (0, 1]; 1 by default.
	Probability float64
	// Limit is how often it strikes at most; 0 for no limit.
	Limit uint64
	// Permanent has it strike also while the rules are switched off.
	Permanent bool
	Fault     Fault
}

// At says when for a script: at these calls, counted from 1.
func At(n ...uint64) func(Call) bool {
	return func(c Call) bool { return slices.Contains(n, c.N) }
}

// Sends says when for transactions: those that match.
func Sends(match func(*types.Transaction) bool) func(Call) bool {
	return func(c Call) bool {
		tx := c.Tx()
		return tx != nil && match(tx)
	}
}

// armed is a rule at work. Its counts survive when rules are switched off and on.
type armed struct {
	Rule
	matched, struck atomic.Uint64
}

// strikes decides about one call; chance is asked for a number in [0, 1).
func (a *armed) strikes(c Call, chance func() float64) bool {
	if len(a.Methods) > 0 && !slices.Contains(a.Methods, c.Method) {
		return false
	}
	c.N = a.matched.Add(1)
	if a.When != nil && !a.When(c) {
		return false
	}
	if a.Probability > 0 && a.Probability < 1 && chance() >= a.Probability {
		return false
	}
	if n := a.struck.Add(1); a.Limit > 0 && n > a.Limit {
		a.struck.Add(^uint64(0))
		return false
	}
	return true
}

// verdict is what a call gets.
type verdict struct {
	fault Fault // Kind 0 for none
	delay time.Duration
}
