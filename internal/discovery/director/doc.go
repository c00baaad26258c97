// Package director is what the leader runs for one epoch: it follows the directory, has every service checked, and
// hands what the checks find to the mirror.
//
// # States
//
// A director is recovering until each service that it found in the directory has a verdict of this epoch; those
// that do not answer are left out, nobody waits for them. Then it is running, or stalled as long as a kind has
// fewer live services than required. Each change of the directory and each verdict decides that again. A stall is
// a report, no more: the mirror shows what is alive whatever the state.
//
// # Who decides
//
// The directory says what exists, the checks say what is alive, the mirror repeats both. The director adds no
// opinion of its own, with one exception, the guard below. Until this epoch has checked a service it is unknown,
// and the mirror leaves it as the leader before had it, so that a new leader removes nobody it has not seen fail.
//
// # The guard
//
// When many services fail at once the fault may be the leader's. With the guard on, the first failure of a live
// service has the rest of its kind checked at once, and its removal waits for that. If at least two, and more than
// the set share of the kind's live services, failed, their removals are held: they stay listed, as unhealthy, for
// at most the set time, or until few enough still fail when checked again. Then what fails is removed. A hold
// shows in the status, the metrics and the log.
//
// # When a step fails
//
//   - The feed is compacted, after a restored snapshot or because this reader was too slow: the directory is read
//     again and the differences are applied.
//   - Redis is away: the mirror waits for it; checks go on.
//   - Redis holds a higher epoch of this cluster: Run ends with the mirror's *HigherEpochError.
//   - Redis mirrors another cluster: Run goes on without a mirror, for the directory is none the worse. Status and
//     log say so, and it is tried again, so that a take-over heals it.
package director
