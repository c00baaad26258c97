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

// Config is the configuration of a director. Fields without a default are required.
type Config struct {
	// Cluster, Node and Epoch identify the leadership.
	Cluster, Node string
	Epoch         uint64
	// Directory is the directory to follow.
	Directory interface {
		Watch() (*fsm.State, *fsm.Feed)
	}
	// Confirm returns nil when a quorum, asked after the call began, has confirmed the leadership.
	Confirm func(context.Context) error
	// Lease is how long a confirmation is valid, counted from before the request was sent (200 ms).
	Lease time.Duration
	// Ended is closed when the leadership is over; running checks are then canceled. If only Run's context ends,
	// because the node stops, they get a second to finish (never closed).
	Ended <-chan struct{}

	// Health is the configuration of the checks.
	Health health.Config
	// Mirror has the Redis client and the prefix. The director sets the fields of the leadership, and Interval to that of the checks.
	Mirror mirror.Config

	// MinLive is the required number of live services per kind (none).
	MinLive map[string]int
	// MassFailureThreshold turns the mass-failure guard on. If more than this share of a kind's live services fail at
	// once, removals are held. 0 to 1; 0, the default, is off.
	MassFailureThreshold float64
	// MassFailureHold is the maximum duration of a hold (1 minute).
	MassFailureHold time.Duration

	Logger  *slog.Logger // discards by default
	Metrics *Metrics     // unregistered by default
}

// withDefaults returns a copy with defaults, or an error that lists all faults. The checker and the mirror validate
// their own fields.
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
