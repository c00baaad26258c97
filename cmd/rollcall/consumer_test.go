package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConsumer_LongRelayerTimeout_DrainsForLonger(t *testing.T) {
	got, err := parseCommand(t, relayRole("consumer", map[string]string{"CONSUMER_RELAYER_TIMEOUT": "5m"}), "consumer")
	require.NoError(t, err)
	require.Greater(t, got.Consumer.Relayers.drain(), 5*time.Minute)
}
