// Package e2e tests the product like its users run it: real processes of the one binary, real sockets, a real
// redis-server. It holds no code of the product.
package e2e
