// Package statuscache keeps the API's answers about transactions in Redis for a short time. The truth is the transaction's row, which
// the API reads by its primary key or the client's id. The API calls this package; it calls Redis.
//
// An answer is stored with a plain SET: for a second while the transaction can change, and for a minute once it is final. Nothing
// announces changes. A status is therefore at most a second old. A read that finds no answer reads the row.
//
// Each answer has the time of its end by the clock of the API that stored it, and is not used after that. So it does not matter
// whether Redis expires it, or executes a SET late because it hung. An answer that can change replaces none, since another process
// may have stored a later one.
//
// A client may use an id again once its transaction was purged, which takes a day at least. So a final answer is stored only while the
// transaction has been final for less than half a day.
//
// Redis is optional. A call that fails or hangs costs 50 ms, and the following reads do not call it for a second.
package statuscache
