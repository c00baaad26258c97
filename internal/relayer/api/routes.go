package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// route is one of the API's routes, with its description.
type route struct {
	method, path string
	handle       func(*Handler, context.Context, *exchange) error
	public       bool        // needs no key
	idempotent   bool        // accepts an Idempotency-Key
	role         apikey.Role // the role that a key needs for it, unless it only reads

	id, summary string
	query       []string // names of [queries]
	request     string   // the schema of its body, one of [requestSchemas]
	data        any      // the type of its response in an envelope
	list        bool     // a list of data, with pagination
	bare        any      // the type of its response without an envelope
	// codes are those besides 200 and those that every route has.
	codes []int
}

// requiredRole returns the minimum role of a key for the route.
func (r *route) requiredRole() apikey.Role {
	if r.method == http.MethodGet {
		return apikey.Reader
	}
	return r.role
}

// scoped reports whether the responses to a path name the caller's idempotency scope.
func scoped(path string) bool {
	rest, ok := strings.CutPrefix(path, relayersPath)
	return ok && (rest == "" || rest[0] == '/')
}

func (r *route) name() string {
	if r.path == "" {
		return "none"
	}
	return r.path
}

const (
	idempotencyKey   = "Idempotency-Key"
	idempotencyScope = "Idempotency-Scope"

	relayersPath     = "/api/v1/relayers"
	relayerPath      = relayersPath + "/{relayer_id}"
	transactionsPath = relayerPath + "/transactions"
	transactionPath  = transactionsPath + "/{transaction_id}"
	pendingPath      = transactionsPath + "/pending"
)

// These are the possible codes of routes besides 200. Each that needs a key may respond with 400, 401, 429, 500, 503 and 504
// too, see [route.mayAnswer].
var (
	reads  = []int{http.StatusNotFound}
	writes = []int{http.StatusForbidden, http.StatusNotFound}
	bodies = []int{
		http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
	}
	submits = append(slices.Clip(bodies), http.StatusGone, http.StatusUnprocessableEntity)
	checks  = []int{http.StatusServiceUnavailable}
)

var pageQuery = []string{"page", "per_page"}

var routes = []route{
	{
		method: http.MethodGet, path: relayersPath, handle: (*Handler).relayers, id: "listRelayers", query: pageQuery,
		summary: "Lists the pool, as one relayer, and then each of its keys.", data: openzeppelin.Relayer{}, list: true,
	},
	{
		method: http.MethodGet, path: relayerPath, handle: (*Handler).relayer, id: "getRelayer",
		summary: "The pool, or one of its keys.", data: openzeppelin.Relayer{}, codes: reads,
	},
	{
		method: http.MethodPatch, path: relayerPath, handle: (*Handler).update, id: "updateRelayer",
		summary: "Changes settings by a JSON merge patch (RFC 7396): paused, policies.min_balance. A name may be sent back.",
		request: "UpdateRelayerRequest", data: openzeppelin.Relayer{}, codes: bodies,
	},
	{
		method: http.MethodGet, path: relayerPath + "/status", handle: (*Handler).status, id: "getRelayerStatus",
		query:   []string{includeBalance, includePending, includeLastConfirmed},
		summary: "Load and state: how much is accepted and not mined, the balance, the next nonce.", data: openzeppelin.Status{}, codes: reads,
	},
	{
		method: http.MethodGet, path: relayerPath + "/balance", handle: (*Handler).balance, id: "getRelayerBalance",
		summary: "The balance in wei; a pool's is the sum of its keys'.", data: openzeppelin.Balance{}, codes: reads,
	},
	{
		method: http.MethodPost, path: transactionsPath, handle: (*Handler).submit, id: "sendTransaction", idempotent: true, role: apikey.Submitter,
		summary: "Accepts a transaction, durably. Hash and nonce follow; a repeated Idempotency-Key gives the same transaction.",
		request: "EvmTransactionRequest", data: openzeppelin.Transaction{}, codes: submits,
	},
	{
		method: http.MethodGet, path: transactionsPath, handle: (*Handler).transactions, id: "listTransactions",
		query:   append(pageQuery[:2:2], "status", "method", "orderbook", "trader", "request_id", "trace_id"),
		summary: "Lists transactions, the newest first.", data: openzeppelin.Transaction{}, list: true, codes: reads,
	},
	{
		method: http.MethodGet, path: transactionPath, handle: (*Handler).transaction, id: "getTransactionById",
		summary: "One transaction.", data: openzeppelin.Transaction{}, codes: reads,
	},
	{
		method: http.MethodPut, path: transactionPath, handle: (*Handler).replace, id: "replaceTransaction", role: apikey.Submitter,
		summary: "Asks for something else at the same nonce. It is not possible once the transaction is mined. Metadata stays. " +
			"No Idempotency-Key is heeded: each repetition is another replacement, at least a tenth dearer.",
		request: "EvmTransactionRequest", data: openzeppelin.Transaction{}, codes: bodies,
	},
	{
		method: http.MethodDelete, path: transactionPath, handle: (*Handler).cancel, id: "cancelTransaction", role: apikey.Submitter,
		summary: "Takes a transaction back, or lets a no-op take its nonce. The original may still win.",
		data:    openzeppelin.Transaction{}, codes: writes,
	},
	{
		method: http.MethodGet, path: transactionsPath + "/by-nonce/{nonce}", handle: (*Handler).transactionByNonce,
		id: "getTransactionByNonce", summary: "A key's transaction with a nonce.", data: openzeppelin.Transaction{}, codes: reads,
	},
	{
		method: http.MethodDelete, path: pendingPath, handle: (*Handler).cancelPending, id: "deletePendingTransactions",
		summary: "Cancels everything that is not mined.", data: openzeppelin.CanceledPending{}, codes: writes,
	},
	{
		method: http.MethodPost, path: relayerPath + "/sign", handle: (*Handler).sign, id: "sign",
		summary: "Signs a text as EIP-191 has it (personal_sign).", request: "SignDataRequest", data: openzeppelin.Signature{}, codes: bodies,
	},
	{
		method: http.MethodPost, path: relayerPath + "/sign-typed-data", handle: (*Handler).signTypedData, id: "signTypedData",
		summary: "Signs the two hashes of EIP-712.", request: "SignTypedDataRequest", data: openzeppelin.Signature{}, codes: bodies,
	},
	{
		method: http.MethodPost, path: relayerPath + "/rpc", handle: (*Handler).rpc, id: "rpc", role: apikey.Reader,
		summary: "Calls a node by JSON-RPC, singly or in a batch. Only methods that read are let through.",
		request: "JsonRpcRequest", bare: openzeppelin.RPCResponse{}, codes: bodies,
	},
	{
		method: http.MethodGet, path: "/api/v1/health", handle: (*Handler).alive, id: "health", public: true,
		summary: "OK, as long as the process answers.", bare: "",
	},
	{
		method: http.MethodGet, path: "/api/v1/ready", handle: (*Handler).ready, id: "readiness", public: true,
		summary: "Whether the relayer can relay, and what is wrong.", bare: openzeppelin.Readiness{}, codes: checks,
	},
	{
		method: http.MethodGet, path: "/health", handle: (*Handler).ready, id: "canRelay", public: true,
		summary: "200 only when the relayer can relay; otherwise the body has the reasons.", bare: openzeppelin.Readiness{}, codes: checks,
	},
	{
		method: http.MethodGet, path: "/api-docs/openapi.json", handle: (*Handler).description, id: "openapi", public: true,
		summary: "This description.", bare: map[string]any{},
	},
}

// unsupported are the routes of OpenZeppelin's that this relayer lacks.
var unsupported = func() (out []struct{ pattern, instead string }) {
	add := func(instead string, patterns ...string) {
		for _, p := range patterns {
			out = append(out, struct{ pattern, instead string }{p, instead})
		}
	}
	add("its keys are part of its configuration", "POST "+relayersPath, "DELETE "+relayerPath,
		"/api/v1/signers", "/api/v1/signers/{rest...}")
	add("webhooks are part of its configuration", "/api/v1/notifications", "/api/v1/notifications/{rest...}")
	add("its chain is part of its configuration", "/api/v1/networks", "/api/v1/networks/{rest...}")
	add("API keys are part of its configuration", "/api/v1/api-keys", "/api/v1/api-keys/{rest...}")
	add("it has no plugins", "/api/v1/plugins", "/api/v1/plugins/{rest...}")
	add("only Stellar and Solana have that", "POST "+relayerPath+"/sign-transaction",
		"POST "+transactionsPath+"/sponsored/quote", "POST "+transactionsPath+"/sponsored/build")
	return out
}()
