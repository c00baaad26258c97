package admin

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
)

// ReadMirror reads the mirror's owner, its age and the sets of all kinds that were ever written, with sorted ids. The set of
// relayers is always among them.
func ReadMirror(ctx context.Context, client redis.UniversalClient, prefix string) (mirror.View, error) {
	meta, err := mirror.Inspect(ctx, client, prefix)
	if err != nil {
		return mirror.View{}, err
	}
	view, err := mirror.NewStore(client, prefix).Read(ctx, append([]string{"relayer"}, meta.Kinds...))
	if err != nil {
		return mirror.View{}, err
	}
	for _, ids := range view.Active {
		slices.Sort(ids)
	}
	return view, nil
}

// TakeOver assigns the mirror to a cluster, whose leader then claims it. It changes nothing if the mirror is that cluster's
// already, because its epoch fences older leaders, except with force: then it also resets an epoch that none of the cluster's
// leaders can reach. It returns what the mirror recorded before, and whether it changed that.
func TakeOver(ctx context.Context, client redis.UniversalClient, prefix, cluster string, force bool) (before mirror.Meta, changed bool, err error) {
	if before, err = mirror.Inspect(ctx, client, prefix); err != nil {
		return before, false, err
	}
	switch {
	case before.Cluster != cluster:
		err = mirror.TakeOver(ctx, client, prefix, cluster)
	case force:
		err = mirror.ForceTakeOver(ctx, client, prefix, cluster)
	default:
		return before, false, nil
	}
	return before, err == nil, err
}
