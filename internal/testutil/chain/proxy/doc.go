// Package proxy is a proxy between a JSON-RPC client and an EVM node, over HTTP and websocket, that injects faults.
//
// [Rule]s select the [Fault] of a call; each item of a batch is a separate call. Rules are checked in order, and the
// first whose fault strikes applies alone, except that delays add up. [Proxy.SetLag] shows the chain as of some blocks
// ago, like a provider that lags. [Proxy.SetDown] makes the endpoint unreachable. All of these may change at any time;
// running calls keep the rules that they started with.
//
// Faults of the connection (Status, Reject, Cut, Lose, Hang, Garble, Truncate) strike the whole batch if they strike one of
// its items. If they strike before the node (Status, Reject, Cut), it receives nothing of the batch.
//
// On a websocket a Status and a Reject are one error answer with the id of the first call, Cut and Lose end the connection, and
// notifications are calls of the method eth_subscription, of which Omit drops one.
//
// Without rules and lag, bytes are forwarded unchanged.
package proxy
