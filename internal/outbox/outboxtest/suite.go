package outboxtest

import "testing"

// Run runs the kit on a kind of table.
func Run(t *testing.T, s Setup) {
	for name, test := range map[string]func(*env){
		"Notify_EachEntry_WorkedOnAtOnce":                  notified,
		"Insert_RolledBack_NothingIsWorkedOn":              rolledBack,
		"Insert_Delayed_WaitsForItsTime":                   insertedDelayed,
		"Insert_IDTwice_Refused":                           insertedTwice,
		"Again_WhileClaimed_WorkedOnAfterwards":            againWhileClaimed,
		"Again_AfterTheLease_WorkedOnAfterwards":           againAfterTheLease,
		"Again_Repeated_NeverTwoHandlersOfOneEntry":        againConcurrently,
		"Again_DelayedDoneOrDead_AsDocumented":             againStates,
		"Run_Backlog_FinishesEveryEntry":                   backlog,
		"Run_Results_CountAsDocumented":                    results,
		"Run_FailedTooOften_Dead":                          maxFailures,
		"Run_FailedForTooLong_Dead":                        retryFor,
		"Run_HandlerPanics_CountsAsFailure":                panics,
		"Run_ClaimsWithoutResult_CountAsFailures":          lostClaims,
		"Run_LongHandler_KeepsItsClaim":                    longHandler,
		"Run_ManyEntries_LimitsConcurrency":                concurrency,
		"Run_SlowHandlers_HoldFewEntries":                  backpressure,
		"Run_TwoWorkers_ShareEntries":                      sharing,
		"Run_Stopped_DrainsAndGivesBack":                   drain,
		"Run_DrainTimeout_EndsHandlers":                    drainTimeout,
		"Subject_ManyWorkers_OneAtATimeInOrder":            subjectOrder,
		"Subject_LowerEntryFails_OthersWait":               subjectFails,
		"Subject_LowerEntryDies_BlocksAsConfigured":        subjectDies,
		"Subject_ReplayedEntry_NeverConcurrent":            subjectReplayed,
		"Subject_SeveralReplayed_InOrder":                  subjectReplayedInOrder,
		"Subject_LongBacklog_OthersAreServed":              subjectBacklog,
		"Subject_SeveralBacklogs_TurnsAlternate":           subjectsAlternate,
		"Lanes_OneHasABacklog_OthersAreServed":             laneBacklog,
		"Lanes_ManyHaveABacklog_EqualShares":               laneShares,
		"Lanes_Limited_AtMostThatMany":                     laneLimits,
		"Lanes_Many_AllServed":                             laneMany,
		"Partitions_TwoWorkers_ClaimTheirOwn":              partitions,
		"Prefix_TwoWorkers_ClaimTheirOwn":                  prefixes,
		"Operators_ListShowReplayDrop_ChangeOnlyNamedOnes": replayAndDrop,
		"Operators_Filter_SelectsEntries":                  filters,
		"Operators_Replay_FullSetOfFailures":               replayAll,
		"Operators_ReplayDuringAgain_NoDeadlock":           replayDuringAgain,
		"Operators_Purge_OldDoneEntriesOnly":               purge,
		"Operators_Abandon_UnknownLanesOnly":               abandon,
		"Operators_Hasten_DelayedEntriesOfTheLane":         hasten,
		"Counts_EachState_Counted":                         counts,
		"Faults_WorkerDiesAtAnyStep_EverythingEnds":        dies,
		"Faults_AnyAnswerLost_EverythingEnds":              lostAnswers,
		"Faults_DatabaseUnavailable_GoesOn":                unavailable,
		"Faults_ListenerCutSilently_PollAndReconnect":      cutListener,
		"Faults_PausedHolderWakes_ChangesNothing":          pausedHolder,
		"Faults_LeaseEndsDuringHandler_ContextEnds":        leaseLost,
		"Faults_ProcessClockWrong_ChangesNothing":          clocks,
		"Million_Waiting_ClaimsAndCountsReadFewPages":      million,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(s.env(t))
		})
	}
	if s.Transport != nil {
		RunBroker(t, s)
	}
}

// RunBroker runs the tests of the kit that are about a broker.
func RunBroker(t *testing.T, s Setup) {
	for name, test := range map[string]func(*env){
		"Broker_Unavailable_GoesOn":                   brokerUnavailable,
		"Broker_MessagesOfNoWork_Acknowledged":        strayMessages,
		"Broker_LosesEverything_SentAgain":            brokerLoses,
		"Broker_NoWorker_SentAgainLessAndLess":        brokerWithoutWorker,
		"Broker_Backlog_HasAWindow":                   brokerWindow,
		"Broker_MoreThanTheLimitOfALane_WaitsItsTurn": brokerLimit,
		"Broker_DispatcherDiesAtAnyStep_SentAgain":    dispatcherDies,
		"Broker_ResultAfterTheLease_NotMarkedAsSent":  resultAfterTheLease,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(s.env(t))
		})
	}
}
