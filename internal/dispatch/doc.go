// Package dispatch defines the relay path's types: transactions, statuses, requests and errors. A client posts a transaction to
// the API, which stores and queues it in one database transaction and answers 202. A consumer sends it to one of the live
// relayers. Webhooks of the relayer, and the reconciler where they fail, bring the outcome back.
//
// Its sub-packages:
//
//	api         the HTTP API of clients, and the receiver of relayers' webhooks
//	statuscache the API's answers about statuses, in Redis
//	store       Postgres: transactions, their history, leases, reports of unknown transactions
//	queue       the queue between API and consumers: Postgres, SQS or RabbitMQ
//	consumer    takes entries, chooses a relayer, submits, stores the outcome
//	fleet       the live relayers by Redis, their load, and the choice among them
//	upstream    the HTTP client of one relayer
//	reconciler  asks relayers about transactions without news
//	health      whether an API or a consumer can work
//	admin       the operator's functions: a transaction's record, decisions about it
//	forward     ERC-2771 requests: signatures and calldata
//
// # Statuses
//
//	queued      stored, and not at a relayer
//	submitting  a consumer has chosen a relayer; the relayer may have the transaction
//	unknown     the relayer may have the transaction, and no lookup can tell: an operator decides
//	submitted   the relayer has accepted the transaction
//	mined       in a block, which a reorganization can still remove
//	confirmed   final: in a block that is deep enough, and it succeeded
//	failed      final: rejected, or its execution failed
//	canceled    final: the relayer has canceled it
//	expired     final: it was past its deadline before it was mined
//
// A transaction returns from submitting to queued only if its relayer certainly does not have it, or an operator has decided so. Each
// change has the next revision. A final status never changes.
package dispatch
