package clusterport

import "time"

// LookAgain makes the next handshake look at the files, however recent the last look.
func (t *TLS) LookAgain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked = time.Time{}
}
