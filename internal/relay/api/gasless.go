package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net/http"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/forward"
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

// gaslessRequest is the body of a gasless request.
type gaslessRequest struct {
	TransactionID string `json:"transactionId"`
	Request       *struct {
		From     *address `json:"from"`
		To       *address `json:"to"`
		Value    *amount  `json:"value"`
		Gas      *amount  `json:"gas"`
		Nonce    *amount  `json:"nonce"`
		Deadline *amount  `json:"deadline"`
		Data     data     `json:"data"`
	} `json:"request"`
	Signature hexutil.Bytes `json:"signature"`
	// Domain are the fields of the EIP-712 domain that the signer used. They are compared with the forwarder's.
	Domain struct {
		Name              string   `json:"name"`
		Version           string   `json:"version"`
		ChainID           *amount  `json:"chainId"`
		VerifyingContract *address `json:"verifyingContract"`
	} `json:"domain"`
	Speed relay.Speed `json:"speed"`
}

// parse returns the forward request and the fields of the domain that the client stated.
func (r *gaslessRequest) parse() (*forward.Request, forward.Domain, error) {
	var declared forward.Domain
	if r.Request == nil {
		return nil, declared, relay.Invalidf("request", "is missing")
	}
	for field, given := range map[string]bool{
		"from": r.Request.From != nil, "to": r.Request.To != nil, "gas": r.Request.Gas != nil, "nonce": r.Request.Nonce != nil,
		"deadline": r.Request.Deadline != nil,
	} {
		if !given {
			return nil, declared, relay.Invalidf("request."+field, "is missing")
		}
	}
	if r.Request.Value.orZero().Sign() != 0 {
		return nil, declared, relay.Invalidf("request.value", "must be 0: the relayer would pay it")
	}
	gas, err := gasLimit(r.Request.Gas)
	if err != nil {
		return nil, declared, relay.Invalidf("request.gas", "must be 1 to %d", int64(maxGas))
	}
	deadline := r.Request.Deadline.orZero()
	if !deadline.IsUint64() || deadline.Uint64() > forward.MaxDeadline {
		return nil, declared, relay.Invalidf("request.deadline", "must be a Unix time in seconds")
	}
	declared = forward.Domain{Name: r.Domain.Name, Version: r.Domain.Version}
	if id := r.Domain.ChainID; id != nil {
		declared.ChainID = math.MaxUint64 // no chain of a node
		if n := id.orZero(); n.IsUint64() {
			declared.ChainID = n.Uint64()
		}
	}
	if c := r.Domain.VerifyingContract; c != nil {
		declared.VerifyingContract = common.Address(*c)
	}
	return &forward.Request{
		From: common.Address(*r.Request.From), To: common.Address(*r.Request.To), Value: new(big.Int), Gas: gas,
		Nonce: r.Request.Nonce.orZero(), Deadline: deadline.Uint64(), Data: r.Request.Data, Signature: r.Signature,
	}, declared, nil
}

// gasless accepts the call of a signer, to be sent by a forwarder.
func (h *Handler) gasless(ctx context.Context, c *call) error {
	if c.forwards == nil {
		return errNoForwarder
	}
	var body gaslessRequest
	if err := decode(c.w, c.r, &body); err != nil {
		return err
	}
	request, declared, err := body.parse()
	if err != nil {
		return err
	}
	speed, err := checkSpeed(body.Speed)
	if err != nil {
		return err
	}
	outer, err := c.forwards.Transaction(request)
	if err != nil {
		return refused(err)
	}
	tx := &relay.Transaction{
		Kind: relay.Gasless, ClientID: body.TransactionID,
		Call:    relay.Call{To: outer.To, Value: outer.Value, Data: outer.Data, GasLimit: outer.Gas, Speed: speed},
		Forward: &relay.Forward{Signer: request.From, Nonce: request.Nonce, Deadline: request.Deadline},
	}
	// A repeated request is answered even if its nonce is used by now, or its deadline is past.
	if found, err := c.repeated(ctx, tx); err != nil || found != nil {
		if err == nil {
			answer(c.w, http.StatusAccepted, acceptedOf(found))
		}
		return err
	}
	if err := h.admit(c.client); err != nil { // before the calls of nodes: a refused request has its cost, too
		return err
	}
	if err := c.forwards.Verify(ctx, request, declared); err != nil {
		return refused(err)
	}
	if err := c.forwards.CheckTarget(ctx, request.To); err != nil {
		return refused(err)
	}
	return h.store(ctx, c, tx)
}

// repeated returns the stored transaction of a request that came before with the same id; nil if there is none.
func (c *call) repeated(ctx context.Context, tx *relay.Transaction) (*relay.Transaction, error) {
	if err := identify(tx, c.client, c.r.Header); err != nil {
		return nil, err
	}
	found, err := c.store.Repeated(ctx, tx)
	if errors.Is(err, relay.ErrNotFound) {
		return nil, nil
	}
	return found, err
}

// refused maps the errors of package forward.
func refused(err error) error {
	if !errors.Is(err, forward.ErrRefused) {
		return fmt.Errorf("%w: %w", relay.ErrUnavailable, err)
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
	return relay.Invalidf(field, "%v", err)
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
	var signer address
	if err := signer.UnmarshalJSON([]byte(`"` + c.r.PathValue("address") + `"`)); err != nil {
		return relay.Invalidf("address", "%v", err)
	}
	if err := h.admit(c.client); err != nil {
		return err
	}
	n, err := c.forwards.Nonce(ctx, common.Address(signer), evm.LatestState)
	if err != nil {
		return refused(err)
	}
	d, err := c.forwards.Domain(ctx)
	if err != nil {
		return refused(err)
	}
	a := nextNonce{Address: common.Address(signer).Hex(), Nonce: n.String()}
	a.Domain.Name, a.Domain.Version, a.Domain.ChainID, a.Domain.VerifyingContract = d.Name, d.Version, d.ChainID, d.VerifyingContract.Hex()
	answer(c.w, http.StatusOK, a)
	return nil
}
