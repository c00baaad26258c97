package director

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Config of a director. Fields without a default are required.
type Config struct {
	// Cluster, Node and Epoch identify the leadership.
	Cluster, Node string
	Epoch         uint64
	// Directory is what is to be directed.
	Directory interface {
		Watch() (*fsm.State, *fsm.Feed)
	}
	// Confirm returns nil when a quorum has said, after the call began, that the leadership stands.
	Confirm func(context.Context) error
	// Lease is how long a confirmation is trusted, counted from before it was asked (200 ms).
	Lease time.Duration
	// Ended is closed when the leadership is over. Then the checks that run are broken off; where only Run's context
	// ends, since the node stops, they get a second to finish (never closed).
	Ended <-chan struct{}

	// Health says how services are checked.
	Health health.Config
	// Mirror has the Redis client and the prefix; what identifies the leadership is filled in.
	Mirror mirror.Config

	// MinLive is how many live services of a kind there must be (none).
	MinLive map[string]int
	// MassFailureThreshold turns the mass-failure guard on: above this share of a kind's live services failing at once,
	// removals are held. 0 to 1; 0, the default, is off.
	MassFailureThreshold float64
	// MassFailureHold is for how long at most (1 minute).
	MassFailureHold time.Duration

	Logger  *slog.Logger // discards by default
	Metrics *Metrics     // unregistered by default
}

// withDefaults returns a complete copy, or all that is wrong with it. The checker and the mirror
// validate their own fields.
func (c Config) withDefaults() (Config, error) {
	c.MassFailureHold = cmp.Or(c.MassFailureHold, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	var errs []error
	if c.Directory == nil {
		errs = append(errs, errors.New("no directory"))
	}
	if c.MassFailureThreshold < 0 || c.MassFailureThreshold > 1 || math.IsNaN(c.MassFailureThreshold) {
		errs = append(errs, fmt.Errorf("mass-failure threshold %v must be 0 to 1", c.MassFailureThreshold))
	}
	if c.MassFailureHold < 0 {
		errs = append(errs, fmt.Errorf("mass-failure hold %v must not be negative", c.MassFailureHold))
	}
	for _, kind := range slices.Sorted(maps.Keys(c.MinLive)) {
		if err := rollcallv1.CheckDNSLabel(kind); err != nil {
			errs = append(errs, fmt.Errorf("required kind %w", err))
		}
		if n := c.MinLive[kind]; n < 0 {
			errs = append(errs, fmt.Errorf("required number of %s, %d, must not be negative", kind, n))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("director: %w", err)
	}
	return c, nil
}
