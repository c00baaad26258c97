// Package warnings limits log lines with the same cause to one a minute, with the number of omitted lines.
//
// The commands wrap their loggers with it.
package warnings
