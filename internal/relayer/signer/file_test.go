package signer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMounted(t *testing.T) {
	t.Parallel()
	require.True(t, mounted("/run/secrets/keys"))
	require.False(t, mounted("/run/secrets/../keys"))
	require.False(t, mounted("/home/me/run/secrets/keys"))
}
