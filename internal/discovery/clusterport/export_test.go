package clusterport

import "time"

// LookAgain makes the next handshake check the files, however recent the last check.
func (t *TLS) LookAgain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked = time.Time{}
}
