package proxy

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
)

// Call is one JSON-RPC call, in the form that rules match.
type Call struct {
	Method string
	Params json.RawMessage
	// Batch is the number of calls in the request.
	Batch int
	// N is how many calls this rule's methods have matched, including this one: for scripts.
	N uint64
}

// Tx returns the transaction of an eth_sendRawTransaction; nil for any other call, and if it cannot be decoded.
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

// Kind is the kind of a fault.
type Kind int

// The kinds of fault.
const (
	// Refuse answers with an error, and the node receives nothing.
	Refuse Kind = iota + 1
	// Status answers with an HTTP status, 503 by default, and the node receives nothing.
	Status
	// Cut resets the connection, and the node receives nothing.
	Cut
	// Lose resets the connection once the node has answered.
	Lose
	// Hang lets the node answer, and the caller wait until it gives up.
	Hang
	// Omit lets the node answer, and drops the answer from the batch; a single answer becomes empty.
	Omit
	// Garble answers with invalid JSON, once the node has answered.
	Garble
	// Truncate answers with the first half, once the node has answered.
	Truncate
	// Delay forwards the call later, even if the caller has given up: the node still executes it.
	Delay
	// Answer answers with the fault's Result, and the node receives nothing.
	Answer
	// Change forwards the call with the result of the fault's Params, and answers with the result of its Alter.
	Change
	// Reject answers the whole request with one error, and the node receives nothing.
	Reject
	// Forget answers an eth_sendRawTransaction as if it was accepted, and the node receives nothing.
	Forget
)

// Fault is the fault of a call.
type Fault struct {
	Kind Kind
	// Code is the error code of a Refuse or a Reject, -32000 by default, or the HTTP status of a Status.
	Code int
	// Message is the error message of a Refuse or a Reject; "refused" by default.
	Message string
	// Status is the HTTP status of a Reject; 200 by default.
	Status int
	// Result is the JSON of an Answer.
	Result string
	// Params and Alter return the changed parameters and result of a Change; nil leaves them unchanged.
	Params, Alter func(json.RawMessage) json.RawMessage
	// RetryAfter is the header of a Status, in seconds; 0 for none.
	RetryAfter int
	// Delay is the duration of a Delay.
	Delay time.Duration
}

// Rule makes a fault strike some calls.
type Rule struct {
	// Name is the name under which strikes are counted.
	Name string
	// Methods are the methods that it matches; any by default.
	Methods []string
	// When, if not nil, selects calls by their content or their number. It must not block.
	When func(Call) bool
	// Probability is the chance that it then strikes, in (0, 1]; 1 by default.
	Probability float64
	// Limit is the maximum number of strikes; 0 for no limit.
	Limit uint64
	// Permanent makes it strike also while the rules are switched off.
	Permanent bool
	Fault     Fault
}

// At returns a When for a script: it selects these calls, counted from 1.
func At(n ...uint64) func(Call) bool {
	return func(c Call) bool { return slices.Contains(n, c.N) }
}

// Sends returns a When for transactions: it selects those that match.
func Sends(match func(*types.Transaction) bool) func(Call) bool {
	return func(c Call) bool {
		tx := c.Tx()
		return tx != nil && match(tx)
	}
}

// Larger returns a When for providers that limit batches: it selects the calls of batches with more than n.
func Larger(n int) func(Call) bool { return func(c Call) bool { return c.Batch > n } }

// Beyond returns a When for providers that limit calls: it selects those after the first n in each second of the clock.
func Beyond(n int) func(Call) bool {
	var mu sync.Mutex
	var second int64
	var allowed int
	return func(Call) bool {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now().Unix(); now != second {
			second, allowed = now, 0
		}
		if allowed == n {
			return true
		}
		allowed++
		return false
	}
}

// armed is an active rule. Its counts survive switching rules off and on.
type armed struct {
	Rule
	matched, struck atomic.Uint64
}

// strikes reports whether the rule strikes a call; chance returns a number in [0, 1).
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

// verdict is the treatment of a call.
type verdict struct {
	fault Fault // Kind 0 for none
	delay time.Duration
}
