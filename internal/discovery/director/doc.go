// Package director is the leader's work for one epoch. It follows the directory, checks every service, and passes the
// results of the checks to the mirror.
//
// cmd/rollcall passes it to the coordinator, which runs it while the node leads. It calls fsm for the directory, health
// for the checks and mirror for Redis.
//
// # States
//
// A director is recovering until each service that it found in the directory has a verdict of this epoch. A service
// that does not respond becomes down, and does not delay the recovery further. Then the director is running, or
// stalled while a kind has fewer live services than required. Each change of the directory and each verdict updates
// the state. A stall is only reported: the mirror lists live services in every state.
//
// # Who decides
//
// The directory defines which services exist, the checks decide which are alive, and the mirror publishes both. The
// director adds one exception, the guard below. Until this epoch has checked a service, the service is unknown, and
// the mirror keeps the previous leader's entry. A new leader therefore removes no service that it has not seen fail.
//
// # The guard
//
// When many services fail at once, the leader may be at fault. With the guard on, the first failure of a live service
// triggers an immediate check of the rest of its kind. The removal waits for the results. If at least two services
// failed, and more than the configured share of the kind's live services, the guard holds their removals. They stay
// listed, as unhealthy, for at most the configured time, or until few enough still fail when checked again. Then the
// failed ones are removed. The status, the metrics and the log report a hold.
//
// # When a step fails
//
//   - The feed is compacted, after a restored snapshot or because this reader was too slow: the director reads the
//     directory again and applies the differences.
//   - Redis is away: the mirror waits for it; checks continue.
//   - Redis holds a higher epoch of this cluster: Run ends and returns it. The coordinator opens one above it.
//   - Redis mirrors another cluster: Run continues without a mirror, because the directory is unaffected. Status and log
//     report it. The mirror is retried, so that a take-over resolves it.
package director
