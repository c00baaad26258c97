// Package foreman knows which services this host defines, and offers those that have passed a health check
// here to the gateway, whose source it is.
//
// # Where services come from
//
// Definition files (*.yaml, *.yml, *.json) in one folder, and advertisements that local processes make over HTTP
// on loopback ([Server]). An id belongs to the file whose name sorts first, then to other files, then to an
// advertisement; what loses is reported. A process that advertises an id that a file defines is refused.
//
// # What is never lost
//
// The gateway registers full sets, so a service that the foreman forgets is removed from the directory. Hence:
//
//   - A file that cannot be read, parsed or accepted keeps its last good version, and is reported. Being empty
//     is such a fault. A file is read only when it has been left alone for a moment, and is gone only when it
//     was missing twice, so that neither a half-written nor a just renamed one counts.
//   - A folder that cannot be read, or that holds no file and is not the one that did (an unmounted volume; after a
//     restart, any), leaves what it defined. If several files are gone at once from the same folder, what they
//     defined stays until all are back, for EmptyGrace at most. A file that defines an empty list is how to say that nothing is meant.
//   - A file or an advertisement that is one too many (10,000 files, or more services than one write holds) is
//     refused like a broken one. The earlier services stay, also across a restart.
//   - Advertisements and the last good version of each file are remembered in a state folder, on disk before
//     the process that advertises has its answer. A restarted gateway starts from them: nothing has to be
//     advertised again, and a file that broke meanwhile is what it was.
//   - Where something is not known, the set says that it is not complete, and nothing is removed for its sake:
//     with a file that never had a good version, a folder that was never readable, and without memory as long as
//     nothing at all is defined.
//
// Without a state folder, or at the first start with it, the foreman waits Settle for processes to advertise.
// One that does so later than that is removed from the directory in between, unless it is remembered.
//
// # What a health check decides
//
// Only when a service is first offered: [Checker] is asked until it once says yes. From then on the service is
// offered until its definition goes, however it fares: that a leader's checks find out. A service not offered
// yet is held, which for a gateway means: keep it where an earlier run had registered it, else wait.
package foreman
