// Package admin implements an operator's operations on a discovery cluster and on its mirror in Redis: who leads, which
// coordinators and services there are, changes of both, and their export and import.
//
// The commands cluster, services, status and mirror call it. It calls coordinators through gateway, and Redis through mirror.
package admin
