// Package limits limits the rate of a relayer's requests with token buckets in the memory of one process. The API calls a
// Guard before the service, with separate buckets of the same size for requests that cause calls of nodes and signers.
//
// The other limits are elsewhere. Package service checks the receivers, the gas price and the gas of each request, and the
// kill switch. Package store charges daily budgets in the database transaction that accepts a request, and passes over keys
// that cannot pay.
//
// Rates count per process: n processes behind a load balancer admit n times as many requests, and a restart resets the
// counts. They protect the process. Budgets, which are exact across processes, protect the money.
package limits
