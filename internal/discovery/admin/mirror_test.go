package admin

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// claim records a leader of a cluster as the mirror's owner.
func claim(t *testing.T, client redis.UniversalClient, cluster string, epoch uint64, kinds ...string) {
	t.Helper()
	reply, err := mirror.NewStore(client, "p:").Write(t.Context(), mirror.Write{
		Op: mirror.OpClaim, Cluster: cluster, Token: mirror.Token{Epoch: epoch}, Leader: "c1", NotAfter: time.Now().Add(time.Hour), Kinds: kinds,
	})
	require.NoError(t, err)
	require.Equal(t, mirror.Applied, reply.Outcome)
}

func TestTakeOver_Owner_DecidesWhatIsChanged(t *testing.T) {
	t.Parallel()
	client := testredis.Start(t).Client()
	take := func(cluster string, force bool) (mirror.Meta, bool) {
		t.Helper()
		before, changed, err := TakeOver(t.Context(), client, "p:", cluster, force)
		require.NoError(t, err)
		return before, changed
	}
	now := func() mirror.Meta {
		t.Helper()
		meta, err := mirror.Inspect(t.Context(), client, "p:")
		require.NoError(t, err)
		return meta
	}

	before, changed := take("old", false)
	require.Zero(t, before, "no cluster had written")
	require.True(t, changed)
	claim(t, client, "old", 40)

	before, changed = take("new", false)
	require.Equal(t, []any{"old", uint64(40), true}, []any{before.Cluster, before.Token.Epoch, changed})
	require.Equal(t, "new", now().Cluster)
	require.Zero(t, now().Token.Epoch)
	claim(t, client, "new", 7)

	before, changed = take("new", false)
	require.Equal(t, []any{"new", uint64(7), false}, []any{before.Cluster, before.Token.Epoch, changed})
	require.EqualValues(t, 7, now().Token.Epoch, "its epoch still fences older leaders")

	before, changed = take("new", true)
	require.Equal(t, []any{"new", uint64(7), true}, []any{before.Cluster, before.Token.Epoch, changed})
	require.Zero(t, now().Token.Epoch)

	_, changed = take("third", true)
	require.True(t, changed)
	require.Equal(t, "third", now().Cluster)
	_, changed, err := TakeOver(t.Context(), client, "p:", "", false)
	require.ErrorContains(t, err, "no cluster id")
	require.False(t, changed)

	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer away.Close()
	_, changed, err = TakeOver(t.Context(), away, "p:", "new", false)
	require.ErrorContains(t, err, "connection refused")
	require.False(t, changed)
	_, err = ReadMirror(t.Context(), away, "p:")
	require.ErrorContains(t, err, "connection refused")
}

func TestReadMirror_EveryKind_IsSorted(t *testing.T) {
	t.Parallel()
	client := testredis.Start(t).Client()
	view, err := ReadMirror(t.Context(), client, "p:")
	require.NoError(t, err)
	require.True(t, view.Meta.UpdatedAt.IsZero(), "no cluster has written")
	require.Contains(t, view.Active, "relayer")

	claim(t, client, "c", 1, "relayer", "signer")
	require.NoError(t, client.SAdd(t.Context(), "p:relayer:active", "b", "c", "a").Err())
	require.NoError(t, client.SAdd(t.Context(), "p:signer:active", "s").Err())
	view, err = ReadMirror(t.Context(), client, "p:")
	require.NoError(t, err)
	require.Equal(t, "c", view.Meta.Cluster)
	require.Equal(t, map[string][]string{"relayer": {"a", "b", "c"}, "signer": {"s"}}, view.Active)
}
