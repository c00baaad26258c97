// Package redisclient connects to Redis: one server, a master found through sentinels, or a Redis Cluster, by one URL.
//
// The clients retry nothing by themselves, and obey the deadlines of contexts. Errors and logs contain no password.
//
// The coordinators' mirror, the relay path's consumers and the commands call it. It calls go-redis.
package redisclient
