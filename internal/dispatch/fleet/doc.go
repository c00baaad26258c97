// Package fleet knows the live relayers and chooses one for each submission. The consumer calls it; it calls Redis, which the
// discovery cluster keeps current, the relayers' APIs, and the store.
//
// # Which relayers there are
//
// A [Fleet] reads the set relayer:active and each member's status hash once a second, and at once after a message on
// relayer:events. A member without a hash gets its URL from a template. While Redis cannot be read, the last known set
// counts for Config.KeepFor; after that there are no relayers, and messages wait.
//
// Of a set with more than 10,000 members as many are read, those first that answer.
//
// A relayer can be chosen once its id behind the URL was looked up, and its chain, which must be that of the database. Both are read
// again with its load. The id is kept until the relayer refuses it, and the relayer of a scope is looked up each time. A relayer of
// another chain, and one whose host [upstream.Config.Dial] refuses, are named in log, health and metric.
//
// # The choice
//
// A relayer has a cost, and the cheapest one is chosen; of many, the cheaper one of two at random, so that consumers that
// read the same loads do not all choose the same relayer.
//
//	cost = (load + 1) * slowness * failures * silence
//
// Each factor is there because the others can be deceived:
//
//	load      The greater of the relayer's own pending count and the transactions there that the store does not know to
//	          be mined, plus this process's since then. A relayer that always reports 0 pending has the store's count.
//	slowness  Recent latency, the highest counts most, or the age of the oldest request in flight if that is longer. A relayer
//	          that does not respond is left before its first timeout. Without requests a relayer's latency becomes the average
//	          of all relayers' in seconds, so that a slow one is tried again, and an overloaded one is not preferred because
//	          nothing is measured there.
//	failures  Recent success. A relayer that fails every second request, which closes its breaker each time, is expensive. So is one
//	          that rejects requests, or answers 503 because no key can pay for them: its own account, policy or settings may be the
//	          reason. The more it rejects in a row, the longer it stays expensive, so that it gets little also beside relayers that
//	          take seconds. One whose idempotency scope has changed is forgiven after seconds.
//	silence   How many of its unmined transactions have no hash after some seconds, or are not among those that it counts as
//	          pending, for each one that has or is: few are chance, and one that counts none loses to others with hundreds.
//	          Both readings begin together, because transactions are accepted and mined between two moments.
//	          A relayer that accepts and never sends is expensive, however fast it accepts. One that does not count its
//	          transactions stays expensive for about a minute after it has too few of them for a comparison.
//
// Paused and disabled relayers are passed over, and so are those whose breaker is open. One fault opens it, at first for a
// second, then for twice as long each time up to half a minute. Then one request is tried. A relayer that is at its limit (425,
// 429) is passed over for a second. Retry-After of such an answer, or of a fault, prolongs the pause to half a minute at most. After
// any other answer Retry-After pauses nothing.
//
// # What is not guaranteed
//
// The first relayer that is seen gives the database its chain, if no setting does. If the database has open transactions, all listed
// relayers have to answer alike first: one that is not listed has no say, though the transactions may be for its chain. A relayer without a scope whose network keeps its
// name and gets another chain is noticed within a minute, or after its next failed reading.
//
// Loads are read once a second, so that between two readings consumers know of each other's requests only by the relayers'
// latency. A relayer that fails gets one request in each pause of its breaker from each consumer.
//
// While the store takes tenths of a second for its count, the count is of a later moment than the relayer's. A relayer that counts
// nothing may then get its share for seconds, but no more than that, because its load is the store's count.
package fleet
