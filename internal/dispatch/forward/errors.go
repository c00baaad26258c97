package forward

import (
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

var (
	// ErrRefused is the error that each reason to refuse a request wraps. The contract would refuse the request too, or it
	// could expire before it is mined. The texts of these errors are for the caller.
	ErrRefused = errors.New("forward request refused")
	// ErrUnavailable means that no node answered, or that the nodes' answers do not agree. It decides nothing about a
	// request.
	ErrUnavailable = errors.New("forwarder cannot be read")
	// ErrWrongContract means that the contract at the configured address is not the configured forwarder. No request can be
	// verified until the configuration is corrected.
	ErrWrongContract = errors.New("contract is not the configured forwarder")
)

// FieldError means that the forwarder, or any transaction, could not take the value of a field.
type FieldError struct {
	Field   string // as in the contract's ForwardRequestData
	Problem string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %s", e.Field, e.Problem) }
func (e *FieldError) Unwrap() error { return ErrRefused }

// DomainError means that the caller names another EIP-712 domain than that of the configured forwarder.
type DomainError struct {
	Field      string // name, version, chainId or verifyingContract
	Want, Have string
}

func (e *DomainError) Error() string {
	return fmt.Sprintf("domain field %s is %q, not %q", e.Field, e.Have, e.Want)
}
func (e *DomainError) Unwrap() error { return ErrRefused }

// ExpiredError means that the deadline is past, or nearer than the margin.
type ExpiredError struct {
	Deadline uint64 // Unix seconds
	Now      time.Time
	Margin   time.Duration
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("deadline %d is less than %v after the time %d", e.Deadline, e.Margin, e.Now.Unix())
}
func (e *ExpiredError) Unwrap() error { return ErrRefused }

// SignatureError means that the signature is malformed.
type SignatureError struct {
	Problem string
}

func (e *SignatureError) Error() string { return "signature " + e.Problem }
func (e *SignatureError) Unwrap() error { return ErrRefused }

// SignerError means that the signature is of another account, or over other values than those of the request and the domain.
type SignerError struct {
	From      common.Address // of the request
	Recovered common.Address // the account that signed, if it signed this request
}

func (e *SignerError) Error() string {
	return fmt.Sprintf("signature is not that of %v over this request, chain and forwarder; it recovers to %v", e.From, e.Recovered)
}
func (e *SignerError) Unwrap() error { return ErrRefused }

// NonceError means that the nonce is not the next one of the signer.
type NonceError struct {
	From  common.Address
	Nonce *big.Int // of the request
	Next  *big.Int // the one that the forwarder accepts next
}

// Used reports whether a request with the nonce was executed already. Otherwise the nonce comes after the next one.
func (e *NonceError) Used() bool { return e.Nonce.Cmp(e.Next) < 0 }

func (e *NonceError) Error() string {
	if e.Used() {
		return fmt.Sprintf("nonce %v of %v is used, the next one is %v", e.Nonce, e.From, e.Next)
	}
	return fmt.Sprintf("nonce %v of %v is after the next one, %v", e.Nonce, e.From, e.Next)
}
func (e *NonceError) Unwrap() error { return ErrRefused }

// TargetError means that the target does not trust the forwarder, which therefore refuses to call it.
type TargetError struct {
	Target, Forwarder common.Address
}

func (e *TargetError) Error() string {
	return fmt.Sprintf("target %v does not trust the forwarder %v", e.Target, e.Forwarder)
}
func (e *TargetError) Unwrap() error { return ErrRefused }
