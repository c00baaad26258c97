// Package pki issues the certificates of a cluster from a certificate authority of its own, kept in one folder.
// It is for development and small installations. An operator with another CA issues the same certificates there: the
// programs check the role among the DNS names.
//
// "rollcall tls init" issues certificates with it; the cluster port and its callers use its roles. It calls the standard library
// alone.
package pki
