// Command drill breaks a composed cluster in every way that Rollcall must survive, and prints the observations.
//
// It expects a running, healthy project of deploy/compose.yaml, uses only its containers, and exits with 1 if any
// result differs from the guarantees. Two checks prove that no healthy relayer is ever missing: no command in Redis's
// own MONITOR removes one, and a reader that polls always finds each of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "drill:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("drill", flag.ContinueOnError)
	project := flags.String("project", "rollcall-drill", "name of the Compose project")
	interval := flags.Duration("interval", 2*time.Second, "health check interval the coordinators run with")
	secrets := flags.String("secrets", "build/compose", "folder of the relayers' API keys")
	if err := flags.Parse(args); err != nil {
		return err
	}
	d := &drill{
		cluster:  &cluster{project: *project, secrets: *secrets},
		interval: *interval,
		out:      stdout,
	}
	fmt.Fprintf(stdout, rowFormat, "step", "expected", "seen", "seconds", "ok")
	for _, step := range []func(context.Context) error{
		d.allUp,
		d.relayerStops,
		d.leaderKilled,
		d.leaderCutOff,
		d.leaderPaused,
		d.redisRestarted,
		d.gatewayKilled,
		d.coordinatorsStopped,
		d.transactionsMined,
		d.relayerKilled,
		d.storeStopped,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	d.watcher.close()
	if d.failed > 0 {
		return fmt.Errorf("%d of %d rows differ from what was promised", d.failed, d.rows)
	}
	fmt.Fprintf(stdout, "all %d rows as promised\n", d.rows)
	return nil
}

const rowFormat = "%-52s %-46s %-52s %8s  %s\n"

type drill struct {
	cluster  *cluster
	interval time.Duration
	watcher  *watcher
	out      io.Writer

	rows, failed int
}

var (
	coordinators = []string{"coordinator-1", "coordinator-2", "coordinator-3"}
	relayers     = []string{"oz-relayer-0", "oz-relayer-1", "oz-relayer-2"}
)

// row prints one line of the table.
func (d *drill) row(step, expected, seen string, took time.Duration, ok bool) {
	verdict := "ok"
	if !ok {
		verdict = "FAIL"
		d.failed++
	}
	d.rows++
	fmt.Fprintf(d.out, rowFormat, step, expected, seen, fmt.Sprintf("%.1f", took.Seconds()), verdict)
}

// await calls act, if it is not nil, and then look until it reports success. It prints a row with the last observation,
// or the error. The printed time is the one that the limit applies to: from before act, including Docker's time for it,
// to the observation.
func (d *drill) await(ctx context.Context, step, expected string, limit time.Duration, act func() error, look func() (seen string, ok bool, err error)) error {
	start := time.Now()
	if act != nil {
		if err := act(); err != nil {
			return err
		}
	}
	return d.awaitSince(ctx, start, step, expected, limit, look)
}

// awaitSince is await for an event that began at a known time.
func (d *drill) awaitSince(ctx context.Context, start time.Time, step, expected string, limit time.Duration, look func() (seen string, ok bool, err error)) error {
	for ; ; pause(ctx, 50*time.Millisecond) {
		seen, ok, err := look()
		if err != nil {
			seen, ok = err.Error(), false
		}
		took := time.Since(start)
		if ok || took > limit || ctx.Err() != nil {
			d.row(step, expected, seen, took, ok && took <= limit)
			return ctx.Err()
		}
	}
}

// guarded runs act while every given id must stay in the active set, and prints a row with the ids that left.
func (d *drill) guarded(ctx context.Context, step string, ids []string, act func() error) error {
	start := time.Now()
	if err := d.watcher.guard(ctx, ids); err != nil {
		return err
	}
	if err := act(); err != nil {
		return err
	}
	missing, polls, writes, err := d.watcher.release(ctx)
	if err != nil {
		return err
	}
	seen := fmt.Sprintf("none in %d polls and %d writes", polls, writes)
	if len(missing) > 0 {
		seen = strings.Join(missing, "; ")
	}
	// A guard that saw no poll and no command proves nothing.
	d.row(step, "no healthy relayer ever missing", seen, time.Since(start), len(missing) == 0 && polls > 0 && writes > 0)
	return nil
}

// awaitSet waits until the active set is exactly ids.
func (d *drill) awaitSet(ctx context.Context, step string, ids []string, limit time.Duration, act func() error) error {
	return d.await(ctx, step, within(ids, limit), limit, act, d.lookAtSet(ctx, ids))
}

func within(ids []string, limit time.Duration) string {
	return fmt.Sprintf("%d active within %s", len(ids), limit)
}

func (d *drill) lookAtSet(ctx context.Context, ids []string) func() (seen string, ok bool, err error) {
	return func() (string, bool, error) {
		active, err := d.cluster.active(ctx)
		return short(active), slices.Equal(active, ids), err
	}
}

// awaitClaim waits until another leader than old has claimed Redis under a higher epoch, and returns that claim.
func (d *drill) awaitClaim(ctx context.Context, step string, old meta, act func() error) (now meta, err error) {
	const limit = 5 * time.Second
	expected := fmt.Sprintf("another leader, epoch above %d, within %s", old.epoch, limit)
	err = d.await(ctx, step, expected, limit, act, func() (string, bool, error) {
		var err error
		now, err = d.cluster.meta(ctx)
		return fmt.Sprintf("%s, epoch %d", now.leader, now.epoch), now.epoch > old.epoch && now.leader != old.leader, err
	})
	return now, err
}

// awaitReady waits until every coordinator reports that it is ready.
func (d *drill) awaitReady(ctx context.Context, step string, act func() error) error {
	return d.await(ctx, step, "3 coordinators ready", 30*time.Second, act, func() (string, bool, error) {
		var ready []string
		for _, c := range coordinators {
			if _, err := d.cluster.rollcall(ctx, c, "healthcheck", readyURL); err == nil {
				ready = append(ready, c)
			}
		}
		return short(ready), len(ready) == len(coordinators), nil
	})
}

// awaitDirectory waits until the directory holds exactly the previous services.
func (d *drill) awaitDirectory(ctx context.Context, step string, before []string, act func() error) error {
	limit := 10*time.Second + 2*d.interval // includes the wait for an act
	return d.await(ctx, step, fmt.Sprintf("the same %d services", len(before)), limit, act, func() (string, bool, error) {
		now, err := d.cluster.directory(ctx)
		return short(now), slices.Equal(now, before), err
	})
}

const readyURL = "http://127.0.0.1:3001/readyz"

func (d *drill) allUp(ctx context.Context) error {
	// The time is not measured, because Compose has waited for healthy containers before.
	if err := d.await(ctx, "all up", "3 active", 15*time.Second, nil, d.lookAtSet(ctx, relayers)); err != nil {
		return err
	}
	if err := d.awaitReady(ctx, "  the coordinators", nil); err != nil {
		return err
	}
	for _, c := range coordinators {
		err := d.await(ctx, "  GET /status of "+c, "200, healthy, 3 of 3 active", 10*time.Second, nil, func() (string, bool, error) {
			s, err := d.cluster.status(ctx, c)
			return fmt.Sprintf("%d, %s, %d of %d active", s.code, s.Status, s.TotalActive, s.TotalConfigured),
				s.code == 200 && s.Status == "healthy" && s.TotalActive == 3 && s.TotalConfigured == 3, err
		})
		if err != nil {
			return err
		}
	}
	var err error
	d.watcher, err = watch(ctx, d.cluster)
	return err
}

// allowance is how long a removal may take beyond the interval: the 500 ms of a check that meets a half-stopped
// container, and docker's time to signal that container and to read Redis.
const allowance = 750 * time.Millisecond

func (d *drill) relayerStops(ctx context.Context) error {
	const victim = "oz-relayer-1"
	others := []string{"oz-relayer-0", "oz-relayer-2"}
	return d.guarded(ctx, "  the others meanwhile", others, func() error {
		// The time counts from the start of the stop, because the checks may fail long before the stop has ended.
		stopped := make(chan error, 1)
		go func() { stopped <- d.cluster.stop(ctx, victim) }()
		err := d.awaitSet(ctx, "stop "+victim, others, d.interval+allowance, nil)
		if err := errors.Join(err, <-stopped); err != nil {
			return err
		}
		if err := d.cluster.start(ctx, victim); err != nil {
			return err
		}
		// The time counts from the start of the process, which is neither the time of the command nor that of Docker's
		// answer.
		started, err := d.cluster.started(ctx, victim)
		if err != nil {
			return err
		}
		const expected, limit = "/health 200", 5 * time.Second
		if err := d.awaitSince(ctx, started, "start "+victim, expected, limit, d.lookAtHealth(ctx, victim, 200, "")); err != nil {
			return err
		}
		return d.awaitSet(ctx, "  the set then", relayers, d.interval+time.Second, nil)
	})
}

func (d *drill) leaderKilled(ctx context.Context) error {
	old, err := d.cluster.meta(ctx)
	if err != nil {
		return err
	}
	return d.guarded(ctx, "  the relayers meanwhile", relayers, func() error {
		_, err := d.awaitClaim(ctx, "kill "+old.leader+", the leader", old, func() error {
			return d.cluster.kill(ctx, old.leader)
		})
		if err != nil {
			return err
		}
		// The first and the second round of checks of the new leader.
		pause(ctx, 2*d.interval)
		return d.awaitReady(ctx, "start "+old.leader, func() error {
			return d.cluster.start(ctx, old.leader)
		})
	})
}

func (d *drill) leaderCutOff(ctx context.Context) error {
	old, err := d.cluster.meta(ctx)
	if err != nil {
		return err
	}
	return d.guarded(ctx, "  the relayers meanwhile", relayers, func() error {
		var shared, own []string // addresses at which its peers answer now; and at which they never do
		for _, peer := range coordinators {
			if peer == old.leader {
				continue
			}
			cluster, err := d.cluster.address(ctx, peer, "cluster")
			if err != nil {
				return err
			}
			mirror, err := d.cluster.address(ctx, peer, mirrorOf(peer))
			if err != nil {
				return err
			}
			shared = append(shared, "tcp://"+peer+".cluster:7400", "tcp://"+cluster+":7400")
			own = append(own, "tcp://"+mirror+":7400")
		}
		for _, url := range shared {
			d.reach(ctx, old.leader, url, true)
		}
		start := time.Now()
		claim, err := d.awaitClaim(ctx, "cut "+old.leader+", the leader, off its peers", old, func() error {
			return d.cluster.disconnect(ctx, old.leader, "cluster")
		})
		if err != nil {
			return err
		}
		for _, url := range append(shared, own...) {
			d.reach(ctx, old.leader, url, false)
		}
		d.reach(ctx, old.leader, "tcp://redis:6379", true)
		d.reach(ctx, old.leader, readyURL, false)
		pause(ctx, 2*d.interval)
		if err := d.silent(ctx, "  the cut-off one", old.leader, claim, start, false); err != nil {
			return err
		}
		return d.awaitReady(ctx, "connect "+old.leader+" again", func() error {
			return d.cluster.connect(ctx, old.leader, "cluster")
		})
	})
}

func (d *drill) leaderPaused(ctx context.Context) error {
	old, err := d.cluster.meta(ctx)
	if err != nil {
		return err
	}
	return d.guarded(ctx, "  the relayers meanwhile", relayers, func() error {
		claim, err := d.awaitClaim(ctx, "pause "+old.leader+", the leader", old, func() error {
			return d.cluster.pause(ctx, old.leader)
		})
		if err != nil {
			return err
		}
		pause(ctx, d.interval)
		start := time.Now()
		if err := d.cluster.unpause(ctx, old.leader); err != nil {
			return err
		}
		pause(ctx, 2*d.interval)
		// Once it runs again, it may be elected again.
		if err := d.silent(ctx, "wake "+old.leader, old.leader, claim, start, true); err != nil {
			return err
		}
		return d.awaitReady(ctx, "  the coordinators", nil)
	})
}

// reach prints a row about whether an address answers from inside a coordinator's container.
func (d *drill) reach(ctx context.Context, from, url string, want bool) {
	word := map[bool]string{true: "answers", false: "does not answer"}
	start := time.Now()
	limit := "2s"
	if !want {
		limit = "500ms"
	}
	_, err := d.cluster.rollcall(ctx, from, "healthcheck", "--timeout", limit, url)
	got, seen := err == nil, word[err == nil]
	// Only the program's own exit code 1 counts as no answer.
	if exit, ok := errors.AsType[*exitError](err); err != nil && (!ok || exit.code != 1) {
		got, seen = !want, err.Error()
	}
	d.row("  "+url+" from inside", word[want], seen, time.Since(start), got == want)
}

// silent prints a row of the commands with which a deposed leader changed Redis after another's claim. If it may lead
// again, it writes from its own next claim on.
func (d *drill) silent(ctx context.Context, step, deposed string, claim meta, start time.Time, mayLead bool) error {
	address, err := d.cluster.address(ctx, deposed, mirrorOf(deposed))
	if err != nil {
		return err
	}
	writes, again, err := d.watcher.writesFrom(ctx, address, claim.epoch)
	if err != nil {
		return err
	}
	seen := "wrote nothing"
	if len(writes) > 0 {
		seen = fmt.Sprintf("%d writes, first: %s", len(writes), writes[0])
	}
	if again > 0 {
		seen += fmt.Sprintf(" before it led again, epoch %d", again)
	}
	d.row(step, "writes nothing", seen, time.Since(start), len(writes) == 0 && (again == 0 || mayLead))
	return nil
}

// mirrorOf returns the network on which only this coordinator reaches Redis.
func mirrorOf(coordinator string) string {
	return "mirror-" + strings.TrimPrefix(coordinator, "coordinator-")
}

func (d *drill) redisRestarted(ctx context.Context) error {
	d.watcher.close()
	before, err := d.cluster.meta(ctx)
	if err != nil {
		return err
	}
	err = d.awaitSet(ctx, "restart Redis empty", relayers, 10*time.Second, func() error {
		if err := d.cluster.kill(ctx, "redis"); err != nil {
			return err
		}
		return d.cluster.start(ctx, "redis")
	})
	if err != nil {
		return err
	}
	err = d.await(ctx, "  what it had kept", "nothing", time.Second, nil, func() (string, bool, error) {
		loaded, err := d.cluster.redis(ctx, "INFO", "persistence")
		empty := strings.Contains(loaded, "rdb_last_load_keys_loaded:0\r") && strings.Contains(loaded, "aof_enabled:0\r")
		return map[bool]string{true: "nothing", false: "something"}[empty], empty, err
	})
	if err != nil {
		return err
	}
	expected := fmt.Sprintf("the same cluster, epoch at least %d", before.epoch)
	err = d.await(ctx, "  the fence", expected, 10*time.Second, nil, func() (string, bool, error) {
		now, err := d.cluster.meta(ctx)
		return fmt.Sprintf("%s, epoch %d", now.leader, now.epoch), now.epoch >= before.epoch && now.cluster == before.cluster, err
	})
	if err != nil {
		return err
	}
	d.watcher, err = watch(ctx, d.cluster)
	return err
}

func (d *drill) gatewayKilled(ctx context.Context) error {
	before, err := d.cluster.directory(ctx)
	if err != nil {
		return err
	}
	return d.guarded(ctx, "  the relayers meanwhile", relayers, func() error {
		err := d.awaitDirectory(ctx, "kill the gateway", before, func() error {
			err := d.cluster.kill(ctx, "gateway")
			pause(ctx, 2*d.interval)
			return err
		})
		if err != nil {
			return err
		}
		err = d.await(ctx, "start the gateway", "ready", 30*time.Second, func() error {
			return d.cluster.start(ctx, "gateway")
		}, func() (string, bool, error) {
			_, err := d.cluster.rollcall(ctx, "gateway", "healthcheck", "http://127.0.0.1:7401/readyz")
			return "ready", err == nil, err
		})
		if err != nil {
			return err
		}
		pause(ctx, d.interval)
		return d.awaitDirectory(ctx, "  the directory then", before, nil)
	})
}

func (d *drill) coordinatorsStopped(ctx context.Context) error {
	services, err := d.cluster.directory(ctx)
	if err != nil {
		return err
	}
	return d.guarded(ctx, "  the relayers meanwhile", relayers, func() error {
		err := d.await(ctx, "stop all coordinators", "exit codes 0 0 0", 20*time.Second, func() error {
			return d.cluster.stop(ctx, coordinators...)
		}, func() (string, bool, error) {
			codes, err := d.cluster.exitCodes(ctx, coordinators...)
			return "exit codes " + codes, codes == "0 0 0", err
		})
		if err != nil {
			return err
		}
		before, err := d.cluster.meta(ctx)
		if err != nil {
			return err
		}
		expected := fmt.Sprintf("not touched for %s", 2*d.interval)
		err = d.await(ctx, "  updated_at", expected, 3*d.interval, nil, func() (string, bool, error) {
			now, err := d.cluster.meta(ctx)
			return fmt.Sprintf("%s old", now.age()), now.updatedAt.Equal(before.updatedAt) && now.age() >= 2*d.interval, err
		})
		if err != nil {
			return err
		}
		if err := d.awaitSet(ctx, "  the set", relayers, time.Second, nil); err != nil {
			return err
		}
		expected = fmt.Sprintf("epoch above %d, updated_at fresh", before.epoch)
		err = d.await(ctx, "start all coordinators", expected, 20*time.Second, func() error {
			return d.cluster.start(ctx, coordinators...)
		}, func() (string, bool, error) {
			now, err := d.cluster.meta(ctx)
			return fmt.Sprintf("epoch %d, %s old", now.epoch, now.age()), now.epoch > before.epoch && now.age() < 3*time.Second, err
		})
		if err != nil {
			return err
		}
		if err := d.awaitDirectory(ctx, "  the directory", services, nil); err != nil {
			return err
		}
		if err := d.awaitReady(ctx, "  the coordinators", nil); err != nil {
			return err
		}
		// The first and the second round of checks of the new leader.
		pause(ctx, 2*d.interval)
		return nil
	})
}

// short returns the names as one text.
func short(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
