package openzeppelin

import "math/big"

// Envelope wraps most responses.
type Envelope[T any] struct {
	Success    bool        `json:"success"`
	Data       *T          `json:"data"`
	Error      *string     `json:"error"`
	Pagination *Pagination `json:"pagination,omitempty"`
}

// Pagination describes which part of a list a response holds.
type Pagination struct {
	CurrentPage uint32 `json:"current_page"` // from 1
	PerPage     uint32 `json:"per_page"`
	TotalItems  uint64 `json:"total_items"`
}

// OK returns the envelope of a result.
func OK[T any](data T) Envelope[T] { return Envelope[T]{Success: true, Data: &data} }

// Failed returns the envelope of an error.
func Failed(message string) Envelope[struct{}] { return Envelope[struct{}]{Error: &message} }

// Refused is the response to a request without a valid key, or over a limit.
type Refused struct {
	Success bool   `json:"success"`
	Code    int    `json:"code"`
	Error   string `json:"error"`
	Message string `json:"message"`
	After   *int64 `json:"after,omitempty"` // seconds until a retry may succeed
}

// Unauthorized returns the response to a request without a valid key.
func Unauthorized() Refused {
	return Refused{Code: 401, Error: "Unauthorized", Message: "Unauthorized"}
}

// TooManyRequests returns the response to a request over a limit.
func TooManyRequests(message string, afterSeconds int64) Refused {
	return Refused{Code: 429, Error: "TooManyRequests", Message: message, After: &afterSeconds}
}

// Relayer is a relayer: the pool, or one of its keys.
type Relayer struct {
	ID             string          `json:"id"`
	Name           string          `json:"name"`
	Network        string          `json:"network"`
	NetworkType    string          `json:"network_type" enum:"evm"`
	Paused         bool            `json:"paused"`
	Policies       *Policies       `json:"policies,omitempty"`
	SignerID       string          `json:"signer_id"`
	Address        *string         `json:"address"` // nil for a pool
	SystemDisabled *bool           `json:"system_disabled"`
	DisabledReason *DisabledReason `json:"disabled_reason,omitempty"`
}

// Policies are the policies of an EVM relayer. Amounts are wei, as JSON numbers of any size.
type Policies struct {
	MinBalance         *big.Int `json:"min_balance"`
	GasLimitEstimation bool     `json:"gas_limit_estimation"`
	GasPriceCap        *big.Int `json:"gas_price_cap,omitempty"`
	WhitelistReceivers []string `json:"whitelist_receivers,omitempty"`
	EIP1559Pricing     *bool    `json:"eip1559_pricing,omitempty"`
	IncludeRevertData  *bool    `json:"include_revert_data,omitempty"`
}

// DisabledReason is why the system has disabled a relayer.
type DisabledReason struct {
	Type    string `json:"type" enum:"NonceSyncFailed,RpcValidationFailed,BalanceCheckFailed,SequenceSyncFailed,Multiple"`
	Details string `json:"details"`
}

// The types of [DisabledReason].
const (
	NonceSyncFailed     = "NonceSyncFailed"
	RPCValidationFailed = "RpcValidationFailed"
	BalanceCheckFailed  = "BalanceCheckFailed"
)

// Status is a relayer's load and state. It omits only parts that the request declined: OpenZeppelin's clients (v1.8,
// RelayerStatus) require the balance, and expect null if no transaction is confirmed.
type Status struct {
	NetworkType              string   `json:"network_type" enum:"evm"`
	Balance                  *string  `json:"balance,omitempty"` // wei, decimal
	PendingTransactionsCount *uint64  `json:"pending_transactions_count,omitempty"`
	LastConfirmedTransaction **string `json:"last_confirmed_transaction_timestamp,omitempty"` // a pointer to nil is null
	SystemDisabled           bool     `json:"system_disabled"`
	Paused                   bool     `json:"paused"`
	Nonce                    string   `json:"nonce"` // decimal; the next one
}

// Balance is the balance of a relayer.
type Balance struct {
	Balance *big.Int `json:"balance"` // a JSON number of any size
	Unit    string   `json:"unit" enum:"wei"`
}

// CanceledPending is the response to the cancellation of all pending transactions.
type CanceledPending struct {
	Queued []string `json:"queued_for_cancellation_transaction_ids"`
	Failed []string `json:"failed_to_queue_transaction_ids"`
	Total  uint32   `json:"total_processed"`
}

// The levels of [Readiness] and its components.
const (
	Healthy   = "healthy"
	Degraded  = "degraded"
	Unhealthy = "unhealthy"
)

// Readiness reports whether the relayer can relay. Its components are this relayer's own, by name.
type Readiness struct {
	Ready      bool                 `json:"ready"`
	Status     string               `json:"status" enum:"healthy,degraded,unhealthy"`
	Reason     string               `json:"reason,omitempty"`
	Components map[string]Component `json:"components"`
	Timestamp  string               `json:"timestamp"`
}

// Component is a part of the relayer, or a dependency.
type Component struct {
	Status string `json:"status" enum:"healthy,degraded,unhealthy"`
	Error  string `json:"error,omitempty"`
	Info   string `json:"info,omitempty"` // no problem, such as the age of the newest block on a quiet chain
}
