//go:build unix

package health

import "syscall"

// noUnreadData reports whether a connection has neither unread data nor an unread end of stream. Its deadline must be
// in the future. It does not block. It may consume the data, so the connection is unusable if it returns false.
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

// canLook reports that noUnreadData works on this system.
const canLook = true
