// Package upstream calls the HTTP API of one relayer: OpenZeppelin Relayer's (v1.8, EVM), which this project's relayer
// serves too. The consumer submits through it, the reconciler and the operator's commands look transactions up, and package
// fleet reads the load.
//
// # The outcome of a submission
//
// A submission can be executed, and executing it twice loses money. So [Client.Submit] returns one of four outcomes, and
// claims no more than the response proves:
//
//	Accepted  the relayer has the transaction, under this id
//	Rejected  the relayer refuses the request itself; so would every relayer of its idempotency scope
//	NotDone   this relayer does not have it; another may get it, or the same one later
//	Unknown   it may have it; the caller resolves that by the idempotency key or by a lookup
//
// Rejected and NotDone hold for this request. They prove nothing about an earlier one with an unknown outcome: the relayer
// may still be storing that one.
//
// Without a response, the count of bytes decides. Every connection counts them, and the client closes it to further writes
// before it reads the count. A relayer cannot accept a body whose end was not sent, so with fewer bytes than the body has
// the outcome is NotDone. Otherwise it is Unknown. The client disables the retries of net/http, which would send a request
// with an Idempotency-Key again by themselves. It repeats a request itself only if a kept connection turned out to be closed
// before a byte was written.
//
// With a response, the status code decides:
//
//	200, 201, 202  Accepted with success:true and an id in JSON; otherwise Unknown. A proxy's page proves nothing
//	other 2xx      Unknown
//	3xx            NotDone, a fault: redirects are not followed, because the API key would follow them
//	400            Rejected with the relayer's error in JSON; otherwise NotDone and a fault, because a proxy refused it.
//	               OpenZeppelin's also answers it if its own balance is too low, or its policy does not have the receiver
//	401, 403       NotDone, a fault: a wrong key, a paused or a disabled relayer
//	404            NotDone, a fault: the relayer's id is gone
//	408, 409       Unknown: another request, or this one, may still be processed
//	410            Unknown: the key was used, and the history of its transaction is gone
//	412            NotDone: the relayer has another idempotency scope
//	413            Rejected with the relayer's error in JSON; otherwise NotDone, because a proxy's limit is not the relayers'
//	422            Unknown if an idempotency key was sent: the key was used with another body, which is a bug of the caller;
//	               without a key as 400
//	425, 429       NotDone until RetryAfter: the relayer is at its limit
//	501            NotDone, a fault: the relayer lacks the route
//	other 4xx      NotDone, a fault
//	503            NotDone if this project's relayer sent it, which stores nothing then. It is no fault, because a value that
//	               no key can pay now is a 503 too. Otherwise Unknown and a fault: a proxy sends a 503 also when it lost the
//	               connection after the request, and Retry-After tells nothing about that
//	500, 502, 504  Unknown, a fault; OpenZeppelin's answers 500 when it has stored a transaction and cannot queue it
//	all others     Unknown, a fault
//
// This project's relayer is recognized by the header Idempotency-Scope, or by the scope that the submission requires.
//
// # The chain
//
// A transaction must reach no other chain. A scope belongs to one chain, so that a relayer whose chain has changed answers 412. Before a
// submission to a relayer without a scope, [Client.Submit] reads the relayer's network, on the connection that the submission then uses:
// a process that was started again with another network has ended that connection. A failed reading is NotDone. [Client.Lookup] does the
// same with the network of its [Ref], because the list of another chain's relayer proves nothing.
//
// # Idempotency
//
// OpenZeppelin's relayer has no idempotency; its answers carry no Idempotency-Scope, and [Info.Scope] is empty. This
// project's relayer names the scope of the caller's keys. A [Submission] with a Scope is refused by a relayer with another
// scope before anything is stored. A [Ref] with a Scope makes reads fail with [ErrOtherScope] instead of returning another
// store's transactions, so that [ErrNotFound] can be believed.
//
// # Bounds
//
// A response has at most 4 MiB, and is never decompressed. One deadline covers a call from the name resolution to the last
// byte of the body. Retry-After is bounded. Texts from a relayer are cut, made printable, and cleared of the API key.
//
// # Not guaranteed
//
// A process that gives one of its relayers another network while it runs, or a proxy that sends the requests of one connection to several
// processes, can do so between the reading of the network and the submission.
//
// A lookup that finds nothing does not prove that a request was lost: the relayer may still be processing it. The caller
// waits longer than the relayer's own timeout (30 s by default) before it believes that. OpenZeppelin's relayer deletes
// final transactions after four hours by default.
package upstream
