//go:build unix

package health

import "syscall"

// noUnreadData reports whether neither data nor an end waits to be read on a connection. Its deadline must lie ahead. It does
// not wait; what is there may be lost, so that a connection that is not silent is of no use any more.
func noUnreadData(raw syscall.RawConn) bool {
	nothing := false
	err := raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		nothing = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	})
	return err == nil && nothing
}

// canLook: silent can tell.
const canLook = true
