// Package devinfo is the format of dev.json, which holds the addresses of a development cluster on this machine.
//
// The supervisor of rollcall-dev writes the file; the operator's commands read it where no address was given. It calls no
// other package of Rollcall.
package devinfo
