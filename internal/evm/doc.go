// Package evm calls the nodes of one EVM chain over JSON-RPC.
//
// The relayer's sender, tracker, keymonitor, service and admin call it, and so do the relay path's api and forward, and the
// escrow monitor. It calls go-ethereum, and no other package of the project.
//
// # Endpoint selection
//
// A Client has several endpoints in order of preference. Every endpoint must report the configured chain id before it
// is used, again each minute and after each failure. An endpoint of another chain is asked for nothing but its chain
// id, and receives no transactions. A call goes to the first healthy endpoint. An endpoint that lags behind the best one
// by more than Config.MaxLag, or whose newest block is old while it reports that it is syncing, comes after those that do
// not. The age alone is no fault unless Config.MaxHeadAge is set. An endpoint that failed recently comes last. A
// rate-limited endpoint is not used.
//
// A call goes on to the next endpoint only if there is no answer: no connection, a timeout, 5xx, an answer that is
// truncated or not JSON, a rate limit, or a JSON-RPC error about the node instead of the call. An endpoint that hangs
// costs one timeout, or its share of the caller's deadline. After that it is not preferred.
//
// A JSON-RPC error is an answer if every healthy node would return it: a revert, insufficient funds, a gas allowance,
// invalid parameters of the caller, and a refusal of the transaction by eth_sendRawTransaction. Any other error counts
// against the endpoint for that method (methods.go). Other endpoints are preferred for the method during a pause, which
// grows with each consecutive failure. The endpoint is still asked for its other methods, and for this one if no other
// endpoint is healthy.
//
// # Batches and rate limits
//
// Providers refuse batches, or large ones, in many forms. A batch that fails as a whole, in any form but a timeout, is
// followed by one of its calls alone. If that is answered, the others are sent in smaller batches, and the endpoint remembers
// the size (batch.go). Otherwise the endpoint counts as failing. Larger batches are tried again after growing pauses.
//
// Providers count each item of a batch, and answer those that they allow. Answers that came count. The others are sent again
// at a pace that is learned from the refusals, and bounded by Config.MaxRPS (pace.go). A call that would wait for the pace of
// an endpoint for more than a second goes on to the next one; it waits for the last one. A method that an endpoint has not
// answered recently does not change its pace: a limit of such a method is about the method.
//
// # Consistent reads
//
// Two endpoints, or one asked twice, may be at different blocks. Values that are compared are read through a View: one
// endpoint and one block. The block is read by hash if the node supports it (EIP-1898). Otherwise the View reads the
// block again afterwards. ErrStale and errors without an answer carry no information about the chain: a caller must not
// decide on them. A View never asks another endpoint, because the reads would not agree. The caller starts over with a
// new View. That View is of another endpoint if the last one failed to answer.
//
// # Logs
//
// Nodes return lists of logs that are empty or lack some, without an error. So [Client.Logs] asks one endpoint, named by the caller,
// which compares. It checks only that the list fits the query and itself.
//
// [Client.BlockLogs] reads the logs of a block from its receipts. If these have the root of the header, and the header the hash of the
// block, the logs are proven, and one endpoint suffices. It serves where lists differ, and for a block whose logs are too many for a
// query. It proves nothing on chains with other headers (zkSync) or receipts (OP chains, Arbitrum).
//
// Endpoints limit queries of logs by blocks, logs, bytes, time and contracts, in codes and words that others use for rate limits.
// The texts are known for this method alone (classify.go), and come first. Such a refusal is an answer, a *LogsLimitError. Unknown
// texts count against the endpoint.
//
// # Sending
//
// A send has three outcomes: the node has the transaction (Accepted, AlreadyKnown), it certainly has not, or Unknown.
// Nodes report the reason only as text; classify.go lists all texts. An unrecognized answer is Unknown. Sending the
// same bytes again is always harmless. Client.Send documents how the results of several endpoints are combined.
//
// # Heads
//
// Run receives heads from a subscription if there is one. It polls the preferred endpoint if there is none, while it is
// down, and when it has been silent for longer than Config.Silence. A head is a hint to read the chain. A subscription that is
// silent while a poll finds a later head is left after that time has passed again. The other endpoints are polled more slowly, or with
// Config.Lazy only while heads come from nowhere.
//
// # Own HTTP requests and failover
//
// WebSockets use go-ethereum's rpc.Client. Over HTTP it loses the error of a node that refuses a batch with one object, and
// reads error pages of any size. A retry or failover library sees one call, while a pause here belongs to an endpoint and a
// method, and a View must not change its endpoint.
//
// # Secrets
//
// The URLs of endpoints hold keys. Errors, logs, metrics and Status contain only the host. Keys that nodes repeat are
// removed from their messages.
package evm
