// Package service is the relayer at work: it accepts requests, gives them to the sender, and answers what its API asks.
//
// A request is checked, priced by a simulation where it does not say its gas limit, and only then handed to the intake,
// which collects what arrives while the database is busy and stores it as a group. The answer goes out when the group's commit is
// on the disk: from then on the transaction is sent, whatever happens to this process.
package service
