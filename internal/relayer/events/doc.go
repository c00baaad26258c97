// Package events defines the webhooks of a relayer, with OpenZeppelin Relayer's bodies: changes of transactions, and keys
// that the system disabled or enabled. Package webhook delivers them.
//
// Each event is a row of relayer_webhooks for each target. The row is written in the database transaction of the change:
// by package store for a change of a transaction, by [Pool.Announce] for a key. [Pool.Source] makes webhooks of the rows.
//
// The payload of "transaction_update" is the transaction in the API's format, as it was at that change, with payload_type
// and our revision. The payload of "relayer_state_update" is a [RelayerDisabled] or a [RelayerEnabled].
//
// # Guarantees
//
// A delivery's row stores the columns of a transaction that can change. A claim reads the rest from the transaction's row.
// Before the store replaces a transaction's contents, it copies the earlier ones into the deliveries. So a late or replayed
// webhook shows the transaction as it was.
//
// The store keeps a transaction while a delivery of it is due or a dead letter, and purges delivered rows with their
// transaction. If an operator replays a delivered row just before, the row may lose its transaction. It becomes a dead
// letter.
//
// cmd/rollcall and package admin pass the Source to package webhook, and package keymonitor calls Announce. This package calls
// webhook for its types and platform/postgres.
//
// It also imports api/openzeppelin: OpenZeppelin Relayer's webhooks have the bodies of its API's responses, so that both use
// one encoding. No other package below the API imports it.
package events
