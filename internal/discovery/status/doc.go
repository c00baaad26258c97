// Package status serves a coordinator's state over HTTP: /status for routers of requests to relayers, /healthz and
// /readyz for supervisors of the process, /metrics for Prometheus.
//
// The coordinator's command serves it. It reads the node and the director through the functions of its Config, and calls no other
// package of the cluster but fsm.
package status
