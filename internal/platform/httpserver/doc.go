// Package httpserver serves HTTP over a limited number of connections. So clients cannot use up the file descriptors
// that the rest of the process needs, and health checks are still answered.
//
// At the limit, a new connection replaces the one that has been idle for longest, like net/http's own idle timeout,
// only sooner. If every connection has a request, some more are accepted beyond the limit, for one request each, which
// Config.Overloaded answers. Beyond those, new connections wait.
//
// It also has what the APIs have in common: a request's id, and the errors of RFC 9457.
//
// The APIs and the HTTP addresses of coordinators and gateways are served through it. It calls the standard library alone.
package httpserver
