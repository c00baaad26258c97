package coordinator

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// An import must end at its total limits, whatever the size of its messages.
func TestServiceImport_TotalLimits(t *testing.T) {
	t.Parallel()
	part := &rollcallv1.ImportServicesRequest{
		Owners: []*rollcallv1.ImportedOwner{{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge"}, Incarnation: 1}},
		Records: []*rollcallv1.ServiceRecord{{
			Service: &rollcallv1.Service{Id: "a", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://a"}}, Owner: fsm.Operator.Proto(),
		}},
	}
	for want, im := range map[string]*serviceImport{
		"1000001 services": {services: rollcallv1.MaxImportServices},
		"1000001 gateways": {owners: rollcallv1.MaxImportServices},
		"bytes so far":     {bytes: rollcallv1.MaxImportBytes},
	} {
		im.leader = new(leader)
		_, err := im.check(part)
		require.Equal(t, codes.ResourceExhausted, status.Code(err), want)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "nothing was imported")
	}
	im := &serviceImport{leader: new(leader), services: rollcallv1.MaxImportServices - 1}
	_, err := im.check(part)
	require.NoError(t, err)
}

func TestToStatus_ImportLost(t *testing.T) {
	t.Parallel()
	err := toStatus(fmt.Errorf("while testing: %w", fsm.ErrImportLost))
	require.Equal(t, codes.Aborted, status.Code(err))
	require.ErrorContains(t, err, "nothing was imported")
}
