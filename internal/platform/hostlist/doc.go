// Package hostlist decides which hosts may receive a secret: by patterns of their names, and by networks of their addresses.
// Addresses of services come from outside, and a secret is for known hosts alone.
package hostlist
