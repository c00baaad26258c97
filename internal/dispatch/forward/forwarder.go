package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// Nodes are the nodes of the chain. An *evm.Client implements it.
type Nodes interface {
	// ChainID returns the configured chain id, which each node that answers has.
	ChainID() uint64
	// CallContract asks all nodes concurrently, until ctx ends.
	CallContract(ctx context.Context, m evm.Message, s evm.State) []evm.CallAnswer
}

// Config is the forwarder contract and what is required of requests.
type Config struct {
	// Nodes of the contract's chain. Required.
	Nodes Nodes
	// Address of the contract. Required.
	Address common.Address
	// Name and Version of the contract's EIP-712 domain. Default: those that the contract reports.
	Name, Version string
	// DeadlineMargin is how long a request must be valid when it is accepted, so that it can be mined. Default 1 minute.
	DeadlineMargin time.Duration
	// BaseGas is the part of a transaction's gas limit that does not depend on the request. Default DefaultBaseGas.
	BaseGas uint64
	// NodeTimeout is how long all nodes together may take for an answer. Nodes that take longer do not count. Default 2 s.
	NodeTimeout time.Duration
	// Now returns the time. Default time.Now.
	Now func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	var problems []error
	if c.Nodes == nil {
		problems = append(problems, errors.New("the nodes are missing"))
	}
	if c.Address == (common.Address{}) {
		problems = append(problems, errors.New("the forwarder's address is missing"))
	}
	if c.DeadlineMargin < 0 {
		problems = append(problems, fmt.Errorf("deadline margin: %v is negative", c.DeadlineMargin))
	}
	if c.NodeTimeout < 0 {
		problems = append(problems, fmt.Errorf("node timeout: %v is negative", c.NodeTimeout))
	}
	c.DeadlineMargin = cmp.Or(c.DeadlineMargin, time.Minute)
	c.BaseGas = cmp.Or(c.BaseGas, DefaultBaseGas)
	c.NodeTimeout = cmp.Or(c.NodeTimeout, 2*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, errors.Join(problems...)
}

// Forwarder verifies requests for one forwarder contract, and builds transactions to it. Its methods are safe for concurrent
// use.
type Forwarder struct {
	cfg    Config
	domain atomic.Pointer[Domain] // nil until it is read
}

// New checks the configuration and returns a Forwarder. It asks no node yet.
func New(cfg Config) (*Forwarder, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}
	return &Forwarder{cfg: cfg}, nil
}

// Address returns the address of the contract.
func (f *Forwarder) Address() common.Address { return f.cfg.Address }

// Verify checks a request completely, without its target: fields, domain, deadline, signature and nonce. declared are the
// fields of the domain that the caller stated, zero where it stated none. The package documentation lists the errors.
func (f *Forwarder) Verify(ctx context.Context, r *Request, declared Domain) error {
	if err := r.Validate(); err != nil {
		return err
	}
	domain, err := f.Domain(ctx)
	if err != nil {
		return err
	}
	if err := CheckDomain(domain, declared); err != nil {
		return err
	}
	if err := CheckDeadline(r, f.cfg.Now(), f.cfg.DeadlineMargin); err != nil {
		return err
	}
	if err := Verify(domain, r); err != nil {
		return err
	}
	next, err := f.Nonce(ctx, r.From, evm.LatestState)
	if err != nil {
		return err
	}
	return CheckNonce(r, next)
}

// Transaction is a transaction that executes a request. Any account may send it, and pays the gas and the value.
type Transaction struct {
	To    common.Address // the forwarder
	Data  []byte
	Value *big.Int // wei
	Gas   uint64   // limit
}

// Transaction returns the transaction that executes a request. It does not verify the request. Errors: *FieldError,
// *SignatureError.
func (f *Forwarder) Transaction(r *Request) (Transaction, error) {
	data, err := Calldata(r)
	if err != nil {
		return Transaction{}, err
	}
	gas, err := Gas(r, data, f.cfg.BaseGas)
	if err != nil {
		return Transaction{}, err
	}
	value := new(big.Int)
	if r.Value != nil {
		value.Set(r.Value)
	}
	return Transaction{To: f.cfg.Address, Data: data, Value: value, Gas: gas}, nil
}

// Domain returns the contract's EIP-712 domain. It asks the nodes until they have answered once. ErrUnavailable means that no
// majority of them gives one answer. ErrWrongContract means that the answer differs from the configuration.
func (f *Forwarder) Domain(ctx context.Context) (Domain, error) {
	if d := f.domain.Load(); d != nil {
		return *d, nil
	}
	answers, err := ask(ctx, f, f.cfg.Address, domainMethod, evm.LatestState, parseDomain)
	var domain chainDomain
	if err == nil {
		domain, err = majority(answers)
	}
	if err != nil {
		return Domain{}, fmt.Errorf("read the domain of forwarder %v: %w", f.cfg.Address, err)
	}
	d, err := f.check(domain)
	if err != nil {
		return Domain{}, fmt.Errorf("domain of forwarder %v: %w: %w", f.cfg.Address, ErrWrongContract, err)
	}
	f.domain.Store(&d)
	return d, nil
}

// check compares the domain that the contract reports with the configuration.
func (f *Forwarder) check(got chainDomain) (Domain, error) {
	want := Domain{Name: f.cfg.Name, Version: f.cfg.Version, ChainID: f.cfg.Nodes.ChainID(), VerifyingContract: f.cfg.Address}
	var problems []error
	if got.fields != domainFields {
		problems = append(problems, fmt.Errorf("its fields are %#x, not %#x (name, version, chain id and contract)", got.fields, domainFields))
	}
	if chainID := new(big.Int).SetBytes(got.chainID[:]); !chainID.IsUint64() || chainID.Uint64() != want.ChainID {
		problems = append(problems, fmt.Errorf("its chain id is %v, not %d", chainID, want.ChainID))
	}
	if got.contract != want.VerifyingContract {
		problems = append(problems, fmt.Errorf("its contract is %v, not %v", got.contract, want.VerifyingContract))
	}
	for _, s := range []struct {
		field string
		want  *string
		got   string
	}{{"name", &want.Name, got.name}, {"version", &want.Version, got.version}} {
		if *s.want != "" && *s.want != s.got {
			problems = append(problems, fmt.Errorf("its %s is %q, not %q", s.field, s.got, *s.want))
		}
		*s.want = s.got
	}
	return want, errors.Join(problems...)
}

// Nonce returns the nonce of the signer's next request, which is the number of its executed requests. With evm.PendingState
// the requests in the nodes' pools count as executed. The package documentation describes how the nodes' answers are
// combined. ErrUnavailable means that no node answered.
func (f *Forwarder) Nonce(ctx context.Context, from common.Address, s evm.State) (*big.Int, error) {
	answers, err := ask(ctx, f, f.cfg.Address, noncesMethod, s, func(data []byte) (*big.Int, error) {
		if len(data) == 0 {
			return nil, errNoContract
		}
		if len(data) != wordSize {
			return nil, fmt.Errorf("%d bytes are not a number", len(data))
		}
		return new(big.Int).SetBytes(data), nil
	}, from)
	if err != nil {
		return nil, fmt.Errorf("read the nonce of %v: %w", from, err)
	}
	slices.SortFunc(answers, (*big.Int).Cmp)
	return answers[len(answers)/2], nil
}

// CheckTarget returns a *TargetError unless the target trusts the forwarder, which otherwise refuses to call it.
// ErrUnavailable means that no majority of the nodes gives one answer.
func (f *Forwarder) CheckTarget(ctx context.Context, target common.Address) error {
	answers, err := ask(ctx, f, target, trustedMethod, evm.LatestState, func(data []byte) (bool, error) {
		// The contract accepts each answer of a word or more that does not begin with a zero word. No code: no data.
		return len(data) >= wordSize && common.BytesToHash(data[:wordSize]) != (common.Hash{}), nil
	}, f.cfg.Address)
	var trusts bool
	if err == nil {
		trusts, err = majority(answers)
	}
	if err != nil {
		return fmt.Errorf("ask target %v whether it trusts the forwarder: %w", target, err)
	}
	if !trusts {
		return &TargetError{Target: target, Forwarder: f.cfg.Address}
	}
	return nil
}

// ask calls a method of a contract at all nodes, and returns the answers that parse accepts, at least one. An execution that
// fails is an answer without data, like that of an account without code.
func ask[T any](
	ctx context.Context, f *Forwarder, contract common.Address, method abi.Method, s evm.State, parse func([]byte) (T, error), args ...any,
) ([]T, error) {
	packed, err := method.Inputs.Pack(args...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.NodeTimeout)
	defer cancel()
	var answers []T
	var problems []error
	for _, a := range f.cfg.Nodes.CallContract(ctx, evm.Message{To: &contract, Data: slices.Concat(method.ID, packed)}, s) {
		if evm.IsNoAnswer(a.Err) || errors.Is(a.Err, evm.ErrNoEndpoint) {
			problems = append(problems, a.Err)
			continue
		}
		answer, err := parse(a.Data) // empty after an error
		if err != nil {
			problems = append(problems, fmt.Errorf("answer of %s to %s: %w", a.Endpoint, method.Name, cmp.Or(a.Err, err)))
			continue
		}
		answers = append(answers, answer)
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(problems...))
	}
	return answers, nil
}

// majority returns the value of more than half of the answers.
func majority[T comparable](answers []T) (T, error) {
	counts := map[T]int{}
	for _, a := range answers {
		if counts[a]++; 2*counts[a] > len(answers) {
			return a, nil
		}
	}
	var zero T
	return zero, fmt.Errorf("%w: %d nodes give %d different answers", ErrUnavailable, len(answers), len(counts))
}

// chainDomain is the domain as a contract reports it.
type chainDomain struct {
	fields        byte
	name, version string
	chainID       [wordSize]byte
	contract      common.Address
}

// errNoContract marks the answer of a node that has no contract at the address, perhaps not yet.
var errNoContract = errors.New("there is no forwarder at the address")

// domainFields has the bits of the fields name, version, chainId and verifyingContract (EIP-5267).
const domainFields = 0x0f

func parseDomain(data []byte) (chainDomain, error) {
	if len(data) == 0 {
		return chainDomain{}, errNoContract
	}
	values, err := domainMethod.Outputs.Unpack(data)
	if err != nil {
		return chainDomain{}, err
	}
	var d chainDomain
	var chainID *big.Int
	var fields [1]byte
	var ok [5]bool
	fields, ok[0] = values[0].([1]byte)
	d.name, ok[1] = values[1].(string)
	d.version, ok[2] = values[2].(string)
	chainID, ok[3] = values[3].(*big.Int)
	d.contract, ok[4] = values[4].(common.Address)
	if slices.Contains(ok[:], false) {
		return chainDomain{}, errors.New("not an EIP-5267 domain")
	}
	d.fields = fields[0]
	chainID.FillBytes(d.chainID[:])
	return d, nil
}

var (
	domainMethod  = contractABI.Methods["eip712Domain"]
	noncesMethod  = contractABI.Methods["nonces"]
	trustedMethod = contractABI.Methods["isTrustedForwarder"]
)

// contractABI has the methods of the forwarder that are read, and isTrustedForwarder of its targets.
var contractABI = mustABI(`[
	{"type": "function", "name": "eip712Domain", "stateMutability": "view", "inputs": [], "outputs": [
		{"name": "fields", "type": "bytes1"}, {"name": "name", "type": "string"}, {"name": "version", "type": "string"},
		{"name": "chainId", "type": "uint256"}, {"name": "verifyingContract", "type": "address"},
		{"name": "salt", "type": "bytes32"}, {"name": "extensions", "type": "uint256[]"}
	]},
	{"type": "function", "name": "nonces", "stateMutability": "view",
		"inputs": [{"name": "owner", "type": "address"}], "outputs": [{"type": "uint256"}]},
	{"type": "function", "name": "isTrustedForwarder", "stateMutability": "view",
		"inputs": [{"name": "forwarder", "type": "address"}], "outputs": [{"type": "bool"}]}
]`)

func mustABI(text string) abi.ABI {
	parsed, err := abi.JSON(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	return parsed
}
