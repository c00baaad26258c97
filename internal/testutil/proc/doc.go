// Package proc runs external servers as processes of tests. It waits until a server is ready, by its output, and for
// its end. On Linux the kernel kills them when the test's process ends for any reason.
//
// It also makes folders for their files, in memory if there is room, and builds the product for tests that run it. The packages
// beside it call it, tests of processes, and the benchmark.
package proc
