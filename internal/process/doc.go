// Package process is the skeleton that the roles of the binary share: the log, the registry of metrics, tracing, health while the
// role starts, and the order of its end.
//
// The commands of the roles call it, and packages that report a process's health have its type from here. It calls packages of
// platform alone.
//
// # Start
//
// [Role.Run] calls the role's function, which opens the role's parts one after the other:
//
//	p.Serve(web)              HTTP answers from now on; ServeHealth for a role that has no API
//	p.Stage("database")       Starting, and Health, return what the start waits for: "starting: database"
//	p.OnStop("database", …)   how to close a part that was opened
//	p.ReportHealth(…)         Health returns the health of the role's parts from now on
//	p.Go("tracker", …)        a stage: it runs until the end
//	p.Started(…)              the role works
//
// The start is stored in one place. Servers with pages of their own are given Starting, and call it for each request until their parts
// are open.
//
// # End
//
// The process ends when its context ends, or when a stage fails. Everything is stopped in the reverse order, one after the other.
// Each step has a limit and is logged by its name. A step that exceeds its limit is left behind, and the process fails.
//
// HTTP stops at the place of Serve: last if Serve was called first, so that the end can be observed. [Process.StopHTTPHere] moves
// it.
package process
