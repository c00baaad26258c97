// Package escrow documents the escrow monitor, whose parts are the packages below it: events computes, store keeps, watch reads and
// confirms, publish sends, instance reports. It has no code.
//
// # Who is authoritative
//
// The chain decides what happened, the database how far it was read, and the outbox what is still to be sent. A process keeps nothing
// that another one needs. The watcher's lease saves work, and the chain's row in the database is the fence.
//
// # Invariants
//
// Each has the tests that show it, and the comments of these tests have its number.
//
//	E1   Fence. A step is stored only if it follows the stored cursor, under the epoch of the current lease, on a chain that is not
//	     halted; blocks, registry, events and messages in one transaction.
//	     store.TestCommit_AnotherProcess_IsFenced store.TestCommit_DiesInTheMiddle_NothingIsSeen store.TestCommit_Halted_StoresNothing
//	     crashtest.TestInstance_PausedInACommit_StoresNothing crashtest.TestInstances_PausedInTurn_NothingIsMissed
//	E2   Lease. At most one process is elected at a time, by the database's clock. Its end frees the lease at once, its death after a term.
//	     store.TestWatcherLease_Conforms rollcall.TestEscrow_LeaderKilled_AnotherTakesOver rollcall.TestEscrow_EscrowsSettle_EventsArrive
//	     crashtest.TestScenarioA_LeaderDies crashtest.TestScenarioB_FollowerDies crashtest.TestInstances_PausedInTurn_NothingIsMissed
//	     crashtest.TestInstance_ItsNodesFail_LeaseMoves crashtest.TestInstance_ItsTopicOrDatabaseIsAway_OthersGoOn
//	E3   Confirmation. No list of logs is stored that only one endpoint gave, unless receipts prove it, or no other endpoint is configured.
//	     watch.TestConfirm_OneEndpointLies_LogsAreTrue watch.TestConfirm_OneEndpointLimited_Waits
//	     watch.TestConfirm_SingleEndpointLies_ReceiptsProve
//	     watch.TestConfirm_SingleEndpointDisproven_CountsUnlessReceiptsDiffer
//	     watch.TestConfirm_ListAndReceiptsLie_Unconfirmed watch.TestProve_EndpointOnItsOwnBranch_NothingIsPassed
//	     watch.TestProve_FalseHashOfATransaction_IsNotBelieved watch.TestProve_MadeUpParent_NoBlockIsHidden
//	E4   Completeness. The messages are the chain's events, each once, whichever process stops and whichever limits endpoints have.
//	     watch.TestWatcher_ProcessesStopInTurn_NothingIsMissed watch.TestWatcher_OneEndpointFaulty_MessagesAreTheChains
//	     watch.TestConfirm_Limits_AllLogs watch.TestLists_LogsInSeveralAnswers_InTheOrderOfTheBlock
//	     watch.TestMatrix_Seeds_MessagesAreTheChains
//	     crashtest.TestScenarioA_LeaderDies crashtest.TestInstances_PausedInTurn_NothingIsMissed
//	     crashtest.TestScenarioC_DatabaseLost crashtest.TestScenarioD_Rebalancing
//	E5   No gap at a start. A start with other factories, another start block or other events than the stored ones is refused; a first
//	     start stores none that the chain does not have. A process stores nothing once an operator has added to its settings, and ends.
//	     store.TestRegister_OtherSettings_Refused rollcall.TestEscrow_DifferentSettings_AreRefusedWithBothValues
//	     rollcall.TestEscrow_FactoryWithoutCode_FailsAndStoresNothing rollcall.TestEscrow_SettingsChangedMeanwhile_EndsWithBothValues
//	E6   Creation. The events of an escrow in the block of its creation are its own, also those before the factory's; none of an earlier
//	     block is.
//	     events.TestMatch_EscrowOfTheSameBlock_Found watch.TestLists_EscrowLogsBeforeItsCreation_NeverCount
//	     watch.TestStep_Fails_ItsEscrowsAreForgotten
//	E7   Parking. A log that does not decode is kept with its bytes, counts in the ids of others, and stops nothing.
//	     events.TestMatch_NotDecodable_ParkedAndCounted events.TestMatch_ValuesShareBytes_Parked store.TestCommit_NotDecodable_Parked
//	E8   Sequence. The messages of an escrow have the sequences 1, 2, 3 and so on, without gaps.
//	     events.TestLedger_RandomChains_ConsumerHasTheChain store.TestCommit_RandomChains_LikeTheLedger
//	     watch.TestMatrix_Seeds_MessagesAreTheChains
//	     crashtest.TestScenarioA_LeaderDies crashtest.TestInstances_PausedInTurn_NothingIsMissed
//	     crashtest.TestScenarioD_Rebalancing
//	E9   Retraction. The messages of an escrow behave as a stack: a retraction takes back the newest standing event, with its removed
//	     block, before anything of the new branch. The oldest pending event becomes final first.
//	     events.TestLedger_RandomChains_ConsumerHasTheChain store.TestCommit_CreationRemoved_EscrowIsNotRegistered
//	     watch.TestMatrix_Seeds_MessagesAreTheChains rollcall.TestEscrow_InstantReorganizations_ConsumerHasAStack
//	E10  Finality. The final block never goes back. It is compared whenever it moves. Endpoints that all contradict it halt the chain.
//	     store.TestCommit_FinalBlockChanged_Refused watch.TestWatcher_FinalBlockChanges_Halts
//	E11  Halt. Nothing of a halted chain is stored or leaves, by no process, until an operator resumes it.
//	     store.TestOutbox_Claim_ReadsTheHalt store.TestOutbox_Claim_LongestChainID publish.TestPublisher_Halted_PublishesNothing
//	     rollcall.TestEscrow_StartsOnHaltedChain_PublishesNothing
//	E12  Order. The messages of an escrow leave in the order of their sequences, one at a time, by any number of processes.
//	     publish.TestPublisher_TwoProcesses_EachEscrowInOrderOnce publish.TestPublisher_Static_PublishesItsPartitions
//	     publish.TestPublisher_SlowTopic_AllEscrowsInFlight rollcall.TestEscrow_Webhook_GetsMessagesInOrder
//	     crashtest.TestScenarioA_LeaderDies crashtest.TestInstances_PausedInTurn_NothingIsMissed
//	     crashtest.TestScenarioD_Rebalancing
//	E13  Repetition. A message is sent once. After a death or a lost answer it is sent again with the same content, before the next one.
//	     publish.TestPublisher_AnswersLost_RepeatsIdentically publish.TestPublisher_TopicFails_GetsAllSoonAfter
//	     crashtest.TestScenarioA_LeaderDies crashtest.TestInstances_PausedInTurn_NothingIsMissed
//	     crashtest.TestScenarioB_FollowerDies crashtest.TestScenarioC_DatabaseLost
//	E14  Refusal. A message that the topic refuses for good holds back its escrow until an operator acts, and no other escrow. One that the
//	     topic fails in another way is repeated until it is accepted, and holds back no other escrow either.
//	     publish.TestPublisher_RefusedForGood_HoldsBackItsEscrow publish.TestPublisher_OneMessageFails_OtherEscrowsGoOn
//	E15  Independence. A process whose endpoints, topic or database are away gives back what it has, and others go on.
//	     publish.TestPublisher_TopicAwayAtOneProcess_OthersPublish publish.TestPublisher_TopicFails_GetsAllSoonAfter
//	     instance.TestRun_DatabaseAway_FailsAfterTheLimit watch.TestInstant_HeadsWithoutBlocks_AnotherProcessReads
//	     crashtest.TestInstance_ItsNodesFail_LeaseMoves crashtest.TestInstance_ItsTopicOrDatabaseIsAway_OthersGoOn
//	     crashtest.TestScenarioC_DatabaseLost
//	E16  Identity. Of two processes under one id the later one stays. A heartbeat shows that the loops of its process turn.
//	     instance.TestRun_Replaced_ReportsOnceAndLeavesTheRow instance.TestRun_LoopHangs_WritesNoHeartbeat
//	     rollcall.TestEscrow_SecondProcessUnderOneID_OlderEnds
//
// # What is not guaranteed
//
// Endpoints that agree on a false list, or on a false chain, are believed. With a single endpoint, on a chain whose headers prove nothing,
// its lists are believed alone; on any chain the hashes of transactions are. A topic may deliver a message more than once.
package escrow
