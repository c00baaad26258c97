package coordinator

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Owners that come and go, such as gateways named after their pods, take no memory with them.
func TestWritersThatAreGoneAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriters(time.Now(), time.Minute)
		write := func(id string) (end func()) {
			_, end, err := w.begin(fsm.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: id}, 2, 1)
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
			_, _, err := w.begin(fsm.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: known}, 1, 1)
			var superseded *fsm.SupersededError
			require.ErrorAs(t, err, &superseded, known)
		}
	})
}
