// Package foreman collects the services that this host defines, and offers those that have passed a local health check
// to the gateway. It is the gateway's source.
//
// cmd/rollcall runs it for the gateway command, and internal/cli reads definition files with it. It calls the
// packages gateway and httpserver alone, and its [Checker] is health's, passed by the caller.
//
// # Where services come from
//
// Services come from definition files (*.yaml, *.yml, *.json) in one folder, and from advertisements that local
// processes send over HTTP on loopback ([Server]). If an id is defined twice, the file whose name sorts first owns it,
// then other files, then an advertisement; the others are reported. An advertisement of an id that a file defines is
// refused.
//
// # What is never lost
//
// The gateway registers full sets, so a service that the foreman forgets is removed from the directory. Hence:
//
//   - A file that cannot be read, parsed or accepted keeps its last good version, and is reported. An empty file is such a
//     fault. A file is read only after it has not changed for a moment, and counts as gone only after it was missing
//     twice. So a half-written or just renamed file does not count.
//   - A folder that cannot be read keeps its definitions. So does a folder without files that is not the folder that had them
//     (an unmounted volume; after a restart, any folder). If several files of one folder are gone at once, their services
//     stay until all are back, for at most MissingFilesGrace. A file with an empty list defines nothing on purpose.
//   - A file or an advertisement above the limits (10,000 files, or more services than one write holds) is refused like
//     a broken file. The earlier services stay, also across a restart.
//   - Advertisements and the last good version of each file are stored in a state folder, on disk before the advertising
//     process gets its answer. A restarted gateway starts from them: processes need not advertise again, and a file that
//     broke in the meantime keeps its good version.
//     An advertisement or a file's version of the stored state that is not valid is skipped and reported, and the others
//     are used: an earlier version may have accepted it.
//   - If the definitions may be incomplete, the set is not marked complete, and nothing is removed. This is so with a
//     file that never had a good version, a folder that was never readable, or a skipped advertisement, until the
//     service is advertised again or withdrawn. It is also so without stored state, while nothing at all is defined.
//
// Without a state folder, or at the first start with it, the foreman waits StartupWait for processes to advertise. A
// service that is advertised later and is not in the stored state is removed from the directory in between.
//
// # What a health check decides
//
// A health check only decides when a service is first offered: the foreman calls [Checker] until it succeeds once.
// From then on the service is offered until its definition is gone, whatever its health, which the leader's checks
// detect. A service not offered yet is held: the gateway keeps it if an earlier run had registered it, and otherwise
// waits.
package foreman
