// Package sqs provides SQS servers for tests: fauxqs, which keeps its queues in memory and needs no credentials.
//
// Endpoint returns the server that the environment names in SQS_TEST_ENDPOINT, or one that all tests of a process share.
// Own starts a server for one test, which can be stopped and started. The program is the one that FAUXQS names, or
// ../shared/fauxqs/fauxqs beside the repository, or the npm package fauxqs through npx.
//
// A test without a server fails if CI=true, and is skipped otherwise. Tests of package outbox/sqs call it. It calls proc.
package sqs
