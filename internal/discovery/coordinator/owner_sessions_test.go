package coordinator

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Owners with short lives, such as gateways named after their pods, must not accumulate in memory.
func TestOwnerSessions_ManyShortLivedOwners_AreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newOwnerSessions(time.Now(), time.Minute)
		write := func(id string) (end func()) {
			_, end, err := w.begin(fsm.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: id}, 2, 1, fsm.BodyHash{})
			require.NoError(t, err)
			return end
		}
		write("on its way")
		for i := range 10 * forgetAbove {
			write(strconv.Itoa(i))()
			<-time.After(time.Second)
		}
		require.LessOrEqual(t, len(w.byOwner), forgetAbove)

		for _, known := range []string{"on its way", strconv.Itoa(10*forgetAbove - 1)} {
			_, _, err := w.begin(fsm.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: known}, 1, 1, fsm.BodyHash{})
			var superseded *fsm.SupersededError
			require.ErrorAs(t, err, &superseded, known)
		}
	})
}

// One write must take over from a limited number of owners, so that their list does not swell its entry.
func TestExpiredOwners_ManyOwners_AreLimited(t *testing.T) {
	t.Parallel()
	cmd := new(rollcallv1.Command)
	var ids []string
	for i := range maxGone + 10 {
		ids = append(ids, fmt.Sprintf("s-%d", i))
		encoded, err := fsm.EncodeService(&rollcallv1.Service{Id: ids[i]})
		require.NoError(t, err)
		cmd.Operations = append(cmd.Operations, &rollcallv1.Operation{Kind: &rollcallv1.Operation_Register{
			Register: &rollcallv1.RegisterOperation{
				Fence:    &rollcallv1.WriteFence{Owner: edge(i).Proto(), Incarnation: 1, Seq: 1},
				Services: [][]byte{encoded},
			},
		}})
	}
	data, err := proto.Marshal(cmd)
	require.NoError(t, err)
	m := fsm.New()
	m.Apply(&raft.Log{Index: 1, Data: data})
	require.Equal(t, len(ids), m.State().Len())

	w := newOwnerSessions(time.Now().Add(-time.Hour), time.Minute)
	_, end, err := w.begin(edge(0), 1, 2, fsm.BodyHash{})
	require.NoError(t, err)
	defer end()
	var want []*rollcallv1.Owner
	for i := 2; i < 2+maxGone; i++ { // the first is active, and the second takes over
		want = append(want, edge(i).Proto())
	}
	require.Equal(t, want, w.expiredOwners(m.State(), edge(1), ids))
	require.Len(t, w.expiredOwners(m.State(), edge(1), ids[:10]), 8)
	require.Empty(t, newOwnerSessions(time.Now(), time.Minute).expiredOwners(m.State(), edge(1), ids), "a new leader reports none yet")
}

func edge(i int) fsm.Owner {
	return fsm.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: fmt.Sprintf("edge-%d", i)}
}
