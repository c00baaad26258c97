package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/http"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/forward"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
)

// Forwards verifies forward requests, and builds the transactions that execute them. A *forward.Forwarder implements it.
type Forwards interface {
	Verify(ctx context.Context, r *forward.Request, declared forward.Domain) error
	CheckTarget(ctx context.Context, target common.Address) error
	Transaction(r *forward.Request) (forward.Transaction, error)
	Nonce(ctx context.Context, from common.Address, s evm.State) (*big.Int, error)
	Domain(ctx context.Context) (forward.Domain, error)
}

// errNoForwarder is the answer to gasless requests without a configured forwarder.
var errNoForwarder = &statusError{http.StatusNotImplemented, "not_implemented", "gasless transactions are off: no forwarder is configured"}

// gaslessRequest is the body of a gasless request. A field that is missing or null has the zero value.
type gaslessRequest struct {
	transactionID string
	chainID       *big.Int // as of a direct request
	request       struct {
		given                       bool
		from, to                    *common.Address
		value, gas, nonce, deadline *big.Int
		data                        []byte
	}
	signature []byte
	// domain has the fields of the EIP-712 domain that the signer used. They are compared with the forwarder's.
	domain forward.Domain
	speed  dispatch.Speed
}

// field reads a field of the body.
func (r *gaslessRequest) field(name, value []byte) (err error) {
	switch string(name) {
	case "transactionId":
		r.transactionID, err = optional(jsonbody.Text, "transactionId", value)
	case "chainId":
		r.chainID, err = optional(jsonbody.Amount, "chainId", value)
	case "request":
		if r.request.given = !jsonbody.IsNull(value); r.request.given {
			err = object("request", value, r.requestField)
		}
	case "signature":
		r.signature, err = optional(calldata, "signature", value)
	case "domain":
		if !jsonbody.IsNull(value) {
			err = object("domain", value, r.domainField)
		}
	case "speed":
		r.speed, err = optional(speed, "speed", value)
	default:
		err = jsonbody.Unknown("", name, "transactionId", "chainId", "request", "signature", "domain", "speed")
	}
	return err
}

// object reads the fields of an object in the body.
func object(path string, value []byte, field func(path string, name, value []byte) error) error {
	if value[0] != '{' {
		return dispatch.Invalidf(path, "must be an object, not %s", jsonbody.Clip(value))
	}
	return jsonbody.Fields(value, path, func(name, value []byte) error { return field(jsonbody.Join(path, string(name)), name, value) })
}

func (r *gaslessRequest) requestField(path string, name, value []byte) (err error) {
	switch q := &r.request; string(name) {
	case "from":
		q.from, err = optional(jsonbody.Address, path, value)
	case "to":
		q.to, err = optional(jsonbody.Address, path, value)
	case "value":
		q.value, err = optional(jsonbody.Amount, path, value)
	case "gas":
		q.gas, err = optional(jsonbody.Amount, path, value)
	case "nonce":
		q.nonce, err = optional(jsonbody.Amount, path, value)
	case "deadline":
		q.deadline, err = optional(jsonbody.Amount, path, value)
	case "data":
		q.data, err = optional(calldata, path, value)
	default:
		err = jsonbody.Unknown("request", name, "from", "to", "value", "gas", "nonce", "deadline", "data")
	}
	return err
}

func (r *gaslessRequest) domainField(path string, name, value []byte) (err error) {
	switch d := &r.domain; string(name) {
	case "name":
		d.Name, err = optional(jsonbody.Text, path, value)
	case "version":
		d.Version, err = optional(jsonbody.Text, path, value)
	case "chainId":
		var id *big.Int
		if id, err = optional(jsonbody.Amount, path, value); id != nil {
			d.ChainID = math.MaxUint64 // no chain of a node
			if id.IsUint64() {
				d.ChainID = id.Uint64()
			}
		}
	case "verifyingContract":
		var contract *common.Address
		if contract, err = optional(jsonbody.Address, path, value); contract != nil {
			d.VerifyingContract = *contract
		}
	default:
		err = jsonbody.Unknown("domain", name, "name", "version", "chainId", "verifyingContract")
	}
	return err
}

// parse returns the forward request.
func (r *gaslessRequest) parse() (*forward.Request, error) {
	q := &r.request
	if !q.given {
		return nil, dispatch.Invalidf("request", "is missing")
	}
	for _, required := range []struct {
		name  string
		given bool
	}{{"from", q.from != nil}, {"to", q.to != nil}, {"gas", q.gas != nil}, {"nonce", q.nonce != nil}, {"deadline", q.deadline != nil}} {
		if !required.given {
			return nil, dispatch.Invalidf("request."+required.name, "is missing")
		}
	}
	if q.value != nil && q.value.Sign() != 0 {
		return nil, dispatch.Invalidf("request.value", "must be 0, not %s: the relayer would pay it", q.value)
	}
	gas, err := gasLimit("request.gas", q.gas)
	if err != nil {
		return nil, err
	}
	if !q.deadline.IsUint64() || q.deadline.Uint64() > forward.MaxDeadline {
		return nil, dispatch.Invalidf("request.deadline", "must be a Unix time in seconds, not %s", q.deadline)
	}
	return &forward.Request{
		From: *q.from, To: *q.to, Value: new(big.Int), Gas: gas, Nonce: q.nonce, Deadline: q.deadline.Uint64(), Data: q.data, Signature: r.signature,
	}, nil
}

// gasless accepts the call of a signer, to be sent by a forwarder.
func (h *Handler) gasless(ctx context.Context, c *call) error {
	if c.forwards == nil {
		return errNoForwarder
	}
	var body gaslessRequest
	if err := decode(c.w, c.r, body.field); err != nil {
		return err
	}
	request, err := body.parse()
	if err == nil {
		err = c.checkChain(ctx, body.chainID)
	}
	if err != nil {
		return err
	}
	outer, err := c.forwards.Transaction(request)
	if err != nil {
		return refused(err)
	}
	tx := &dispatch.Transaction{
		Kind: dispatch.Gasless, ClientID: body.transactionID,
		Call:    dispatch.Call{To: outer.To, Value: outer.Value, Data: outer.Data, GasLimit: outer.Gas, Speed: cmp.Or(body.speed, dispatch.Average)},
		Forward: &dispatch.Forward{Signer: request.From, Nonce: request.Nonce, Deadline: request.Deadline},
	}
	// A repeated request is answered even if its nonce is used by now, or its deadline is past.
	if found, err := c.repeated(ctx, tx); err != nil || found != nil {
		if err == nil {
			answer(c.w, http.StatusAccepted, found.Summary())
		}
		return err
	}
	if err := h.admit(c.client); err != nil { // before the calls of nodes: a refused request has its cost, too
		return err
	}
	if err := c.forwards.Verify(ctx, request, body.domain); err != nil {
		return refused(err)
	}
	if err := c.forwards.CheckTarget(ctx, request.To); err != nil {
		return refused(err)
	}
	return h.store(ctx, c, tx)
}

// repeated returns the stored transaction of a request that came before with the same id; nil if there is none.
func (c *call) repeated(ctx context.Context, tx *dispatch.Transaction) (*dispatch.Transaction, error) {
	if err := identify(tx, c.client, c.r.Header); err != nil {
		return nil, err
	}
	found, err := c.store.Repeated(ctx, tx)
	if errors.Is(err, dispatch.ErrNotFound) {
		return nil, nil
	}
	return found, err
}

// refused maps the errors of package forward.
func refused(err error) error {
	if !errors.Is(err, forward.ErrRefused) {
		return fmt.Errorf("%w: %w", dispatch.ErrUnavailable, err)
	}
	field := "request"
	switch {
	case is[*forward.SignatureError](err), is[*forward.SignerError](err):
		field = "signature"
	case is[*forward.DomainError](err):
		field = "domain"
	case is[*forward.ExpiredError](err):
		field = "request.deadline"
	case is[*forward.NonceError](err):
		field = "request.nonce"
	case is[*forward.TargetError](err):
		field = "request.to"
	}
	return dispatch.Invalidf(field, "%v", err)
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// nextNonce is the answer to a request for a signer's nonce. The domain is the one that its request must be signed for.
type nextNonce struct {
	Address string `json:"address"`
	Nonce   string `json:"nonce"` // in decimal digits
	Domain  struct {
		Name              string `json:"name"`
		Version           string `json:"version"`
		ChainID           uint64 `json:"chainId"`
		VerifyingContract string `json:"verifyingContract"`
	} `json:"domain"`
}

// nonce answers the nonce that a signer's next request must have.
func (h *Handler) nonce(ctx context.Context, c *call) error {
	if c.forwards == nil {
		return errNoForwarder
	}
	signer, err := jsonbody.ParseAddress(c.r.PathValue("address"))
	if err != nil {
		return dispatch.Invalidf("address", "%v", err)
	}
	if err := h.admit(c.client); err != nil {
		return err
	}
	n, err := c.forwards.Nonce(ctx, signer, evm.LatestState)
	if err != nil {
		return refused(err)
	}
	d, err := c.forwards.Domain(ctx)
	if err != nil {
		return refused(err)
	}
	a := nextNonce{Address: signer.Hex(), Nonce: n.String()}
	a.Domain.Name, a.Domain.Version, a.Domain.ChainID, a.Domain.VerifyingContract = d.Name, d.Version, d.ChainID, d.VerifyingContract.Hex()
	answer(c.w, http.StatusOK, a)
	return nil
}
