// Package leasetest checks that a table's columns carry a lease as package lease describes it. Each user of lease runs it on its
// own table.
package leasetest
