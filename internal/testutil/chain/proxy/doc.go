// Package proxy stands between a JSON-RPC client and an EVM node, over HTTP and websocket alike, and injects faults.
//
// [Rule]s say which calls get which [Fault]; each item of a batch is a call of its own. Rules are asked in order, and the
// first whose fault strikes has the call to itself, except that delays add up. [Proxy.SetLag] shows the chain as of some
// blocks ago, as a provider does that is behind; [Proxy.SetDown] makes the endpoint unreachable. All of it may change at
// any time; what is under way keeps the rules that it started with.
//
// Faults that concern the connection (Status, Cut, Lose, Hang, Garble, Truncate) strike all of a batch as soon as they
// strike one of its items. Where they strike before the node (Status, Cut), it sees nothing of the batch.
//
// On a websocket a Status is an error answer, Cut and Lose end the connection, and notifications are calls of the method
// eth_subscription, of which Omit loses one.
//
// Without rules and lag, bytes pass as they are.
package proxy
