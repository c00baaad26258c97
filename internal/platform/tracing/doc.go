// Package tracing exports OpenTelemetry spans by OTLP over HTTP, if an endpoint is configured. The commands of the API, the
// consumer and the relayer call it.
//
// A trace goes from the client's request to the chain: the W3C trace context of the request is stored with the transaction,
// sent to the relayer with the header traceparent, and stored there as the parent of the signature's span. A trace that the client
// does not sample is exported nowhere. Without an endpoint no span is made, and the client's
// trace context still goes all the way.
//
// Spans never delay or fail what they describe: they are exported in batches, and dropped while the endpoint fails.
package tracing
