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
	"os/exec"
	"os/signal"
	"runtime"
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
	d := &drill{ctx: ctx, out: stdout}
	flags := flag.NewFlagSet("drill", flag.ContinueOnError)
	flags.StringVar(&d.project, "project", "rollcall-drill", "name of the Compose project")
	flags.DurationVar(&d.interval, "interval", 2*time.Second, "health check interval the coordinators run with")
	flags.StringVar(&d.secrets, "secrets", "build/compose", "folder of the relayers' API keys")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fmt.Fprintf(stdout, rowFormat, "step", "expected", "seen", "seconds", "ok")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, step := range []func(){
			d.allUp, d.relayerStops, d.leaderKilled, d.leaderCutOff, d.leaderPaused, d.redisRestarted, d.gatewayKilled,
			d.coordinatorsStopped, d.transactionsMined, d.relayerKilled, d.storeStopped,
		} {
			step()
		}
	}()
	<-done
	d.watcher.close()
	if d.err != nil {
		return d.err
	}
	if d.failed > 0 {
		return fmt.Errorf("%d of %d rows differ from what was promised", d.failed, d.rows)
	}
	fmt.Fprintf(stdout, "all %d rows as promised\n", d.rows)
	return nil
}

// drill is a running drill. Its parts have the names of deploy/compose.yaml.
type drill struct {
	ctx      context.Context
	project  string // of Compose
	secrets  string // folder with the secrets that scripts/compose.sh made
	interval time.Duration
	watcher  *watcher
	out      io.Writer

	rows, failed int
	err          error // that ended it
}

var (
	coordinators = []string{"coordinator-1", "coordinator-2", "coordinator-3"}
	relayers     = []string{"oz-relayer-0", "oz-relayer-1", "oz-relayer-2"}
)

// check ends the drill if there is an error. It ends the goroutine of the steps, as an assertion ends a test.
func (d *drill) check(err error) {
	if err == nil {
		err = d.ctx.Err()
	}
	if err != nil {
		d.err = err
		runtime.Goexit()
	}
}

// pause waits for a time.
func (d *drill) pause(t time.Duration) {
	select {
	case <-d.ctx.Done():
	case <-time.After(t):
	}
	d.check(nil)
}

const rowFormat = "%-52s %-46s %-52s %8s  %s\n"

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

// value returns the result of a reading, which must succeed.
func value[T any](d *drill, read func() (T, error)) T {
	v, err := read()
	d.check(err)
	return v
}

// look observes something, and reports whether it is as expected.
type look func() (seen string, ok bool, err error)

// await calls act, if it is not nil, and then look until it reports success. It prints a row with the last observation,
// or the error. The printed time is the one that the limit applies to: from before act, including Docker's time for it,
// to the observation.
func (d *drill) await(step, expected string, limit time.Duration, act func(), look look) {
	start := time.Now()
	if act != nil {
		act()
	}
	d.awaitSince(start, step, expected, limit, look)
}

// awaitSince is await for an event that began at a known time.
func (d *drill) awaitSince(start time.Time, step, expected string, limit time.Duration, look look) {
	for ; ; d.pause(50 * time.Millisecond) {
		seen, ok, err := look()
		if err != nil {
			seen, ok = err.Error(), false
		}
		took := time.Since(start)
		if ok || took > limit {
			d.row(step, expected, seen, took, ok && took <= limit)
			return
		}
	}
}

// awaitSet waits until the active set is exactly ids.
func (d *drill) awaitSet(step string, ids []string, limit time.Duration, act func()) {
	d.await(step, fmt.Sprintf("%d active within %s", len(ids), limit), limit, act, d.activeAre(ids))
}

func (d *drill) activeAre(ids []string) look {
	return func() (string, bool, error) {
		out, err := d.redis("SMEMBERS", activeKey)
		active := slices.Sorted(slices.Values(strings.Fields(out)))
		return short(active), slices.Equal(active, ids), err
	}
}

// awaitClaim waits until another leader than old has claimed Redis under a higher epoch, and returns that claim.
func (d *drill) awaitClaim(step string, old meta, act func()) (now meta) {
	const limit = 5 * time.Second
	expected := fmt.Sprintf("another leader, epoch above %d, within %s", old.Epoch, limit)
	d.await(step, expected, limit, act, func() (_ string, _ bool, err error) {
		now, err = d.meta()
		return fmt.Sprintf("%s, epoch %d", now.Leader, now.Epoch), now.Epoch > old.Epoch && now.Leader != old.Leader, err
	})
	return now
}

// awaitReady waits until every coordinator reports that it is ready.
func (d *drill) awaitReady(step string, act func()) {
	d.await(step, "3 coordinators ready", 30*time.Second, act, func() (string, bool, error) {
		ready := slices.DeleteFunc(slices.Clone(coordinators), func(c string) bool { return d.healthcheck(c, "2s", readyURL) != nil })
		return short(ready), len(ready) == len(coordinators), nil
	})
}

// awaitDirectory waits until the directory holds exactly the previous services.
func (d *drill) awaitDirectory(step string, before []string, act func()) {
	limit := 10*time.Second + 2*d.interval // includes the wait for an act
	d.await(step, fmt.Sprintf("the same %d services", len(before)), limit, act, func() (string, bool, error) {
		now, err := d.directory()
		return short(now), slices.Equal(now, before), err
	})
}

const readyURL = "http://127.0.0.1:3001/readyz"

func (d *drill) allUp() {
	// The time is not measured, because Compose has waited for healthy containers before.
	d.await("all up", "3 active", 15*time.Second, nil, d.activeAre(relayers))
	d.awaitReady("  the coordinators", nil)
	for _, c := range coordinators {
		d.await("  GET /status of "+c, "200, healthy, 3 of 3 active", 10*time.Second, nil, func() (string, bool, error) {
			var s struct {
				Status                       string
				TotalConfigured, TotalActive int
			}
			code, err := d.get(c, "3001", "/status", &s)
			seen := fmt.Sprintf("%d, %s, %d of %d active", code, s.Status, s.TotalActive, s.TotalConfigured)
			return seen, seen == "200, healthy, 3 of 3 active", err
		})
	}
	d.watch()
}

// allowance is how long a removal may take beyond the interval: the 500 ms of a check that meets a half-stopped
// container, and docker's time to signal that container and to read Redis.
const allowance = 750 * time.Millisecond

func (d *drill) relayerStops() {
	const victim = "oz-relayer-1"
	others := []string{"oz-relayer-0", "oz-relayer-2"}
	d.guarded("  the others meanwhile", others, func() {
		// The time counts from the start of the stop, because the checks may fail long before the stop has ended.
		stopped := make(chan error, 1)
		go func() {
			_, err := d.each([]string{victim}, strings.Fields(stop)...)
			stopped <- err
		}()
		d.awaitSet("stop "+victim, others, d.interval+allowance, nil)
		d.check(<-stopped)
		d.must("start", victim)
		// The time counts from the start of the process, which is neither the time of the command nor that of Docker's
		// answer.
		at, err := d.each([]string{victim}, "inspect", "--format", "{{.State.StartedAt}}")
		d.check(err)
		started, err := time.Parse(time.RFC3339Nano, at)
		d.check(err)
		d.awaitHealth(started, "start "+victim, victim, 200, "", 5*time.Second)
		d.awaitSet("  the set then", relayers, d.interval+time.Second, nil)
	})
}

func (d *drill) leaderKilled() {
	old := value(d, d.meta)
	d.guarded("  the relayers meanwhile", relayers, func() {
		d.awaitClaim("kill "+old.Leader+", the leader", old, func() { d.must("kill", old.Leader) })
		// The first and the second round of checks of the new leader.
		d.pause(2 * d.interval)
		d.awaitReady("start "+old.Leader, func() { d.must("start", old.Leader) })
	})
}

func (d *drill) leaderCutOff() {
	old := value(d, d.meta)
	d.guarded("  the relayers meanwhile", relayers, func() {
		var shared, own []string // addresses at which its peers answer now; and at which they never do
		for _, peer := range coordinators {
			if peer == old.Leader {
				continue
			}
			shared = append(shared, "tcp://"+peer+".cluster:7400", "tcp://"+d.address(peer, "cluster")+":7400")
			own = append(own, "tcp://"+d.address(peer, mirrorOf(peer))+":7400")
		}
		d.reach(old.Leader, true, shared...)
		start, network := time.Now(), d.project+"_cluster"
		claim := d.awaitClaim("cut "+old.Leader+", the leader, off its peers", old, func() {
			d.must("network disconnect "+network, old.Leader)
		})
		d.reach(old.Leader, false, append(shared, own...)...)
		d.reach(old.Leader, true, "tcp://redis:6379")
		d.reach(old.Leader, false, readyURL)
		d.pause(2 * d.interval)
		d.silent("  the cut-off one", old.Leader, claim, start, false)
		d.awaitReady("connect "+old.Leader+" again", func() {
			// Under its names in deploy/compose.yaml.
			d.must(fmt.Sprintf("network connect --alias %s --alias %[1]s.cluster %s", old.Leader, network), old.Leader)
		})
	})
}

func (d *drill) leaderPaused() {
	old := value(d, d.meta)
	d.guarded("  the relayers meanwhile", relayers, func() {
		claim := d.awaitClaim("pause "+old.Leader+", the leader", old, func() { d.must("pause", old.Leader) })
		d.pause(d.interval)
		start := time.Now()
		d.must("unpause", old.Leader)
		d.pause(2 * d.interval)
		// Once it runs again, it may be elected again.
		d.silent("wake "+old.Leader, old.Leader, claim, start, true)
		d.awaitReady("  the coordinators", nil)
	})
}

// reach prints rows about whether addresses answer from inside a coordinator's container.
func (d *drill) reach(from string, want bool, urls ...string) {
	word := map[bool]string{true: "answers", false: "does not answer"}
	limit := map[bool]string{true: "2s", false: "500ms"}
	for _, url := range urls {
		start := time.Now()
		err := d.healthcheck(from, limit[want], url)
		got, seen := err == nil, word[err == nil]
		// Only the program's own exit code 1 counts as no answer.
		if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
			got, seen = !want, err.Error()
		}
		d.row("  "+url+" from inside", word[want], seen, time.Since(start), got == want)
	}
}

// mirrorOf returns the network on which only this coordinator reaches Redis.
func mirrorOf(coordinator string) string {
	return "mirror-" + strings.TrimPrefix(coordinator, "coordinator-")
}

func (d *drill) redisRestarted() {
	d.watcher.close()
	before := value(d, d.meta)
	d.awaitSet("restart Redis empty", relayers, 10*time.Second, func() {
		d.must("kill", "redis")
		d.must("start", "redis")
	})
	d.await("  what it had kept", "nothing", time.Second, nil, func() (string, bool, error) {
		loaded, err := d.redis("INFO", "persistence")
		empty := strings.Contains(loaded, "rdb_last_load_keys_loaded:0\r") && strings.Contains(loaded, "aof_enabled:0\r")
		return map[bool]string{true: "nothing", false: "something"}[empty], empty, err
	})
	expected := fmt.Sprintf("the same cluster, epoch at least %d", before.Epoch)
	d.await("  the fence", expected, 10*time.Second, nil, func() (string, bool, error) {
		now, err := d.meta()
		return fmt.Sprintf("%s, epoch %d", now.Leader, now.Epoch), now.Epoch >= before.Epoch && now.Cluster == before.Cluster, err
	})
	d.watch()
}

func (d *drill) gatewayKilled() {
	before := value(d, d.directory)
	d.guarded("  the relayers meanwhile", relayers, func() {
		d.awaitDirectory("kill the gateway", before, func() {
			d.must("kill", "gateway")
			d.pause(2 * d.interval)
		})
		d.await("start the gateway", "ready", 30*time.Second, func() { d.must("start", "gateway") }, func() (string, bool, error) {
			err := d.healthcheck("gateway", "2s", "http://127.0.0.1:7401/readyz")
			return "ready", err == nil, err
		})
		d.pause(d.interval)
		d.awaitDirectory("  the directory then", before, nil)
	})
}

func (d *drill) coordinatorsStopped() {
	services := value(d, d.directory)
	d.guarded("  the relayers meanwhile", relayers, func() {
		d.await("stop all coordinators", "exit codes 0 0 0", 20*time.Second, func() { d.must(stop, coordinators...) }, func() (string, bool, error) {
			codes, err := d.each(coordinators, "inspect", "--format", "{{.State.ExitCode}}")
			codes = strings.Join(strings.Fields(codes), " ")
			return "exit codes " + codes, codes == "0 0 0", err
		})
		before := value(d, d.meta)
		d.await("  updated_at", fmt.Sprintf("not touched for %s", 2*d.interval), 3*d.interval, nil, func() (string, bool, error) {
			now, err := d.meta()
			return fmt.Sprintf("%s old", now.age()), now.UpdatedAt.Equal(before.UpdatedAt) && now.age() >= 2*d.interval, err
		})
		d.awaitSet("  the set", relayers, time.Second, nil)
		expected := fmt.Sprintf("epoch above %d, updated_at fresh", before.Epoch)
		d.await("start all coordinators", expected, 20*time.Second, func() { d.must("start", coordinators...) }, func() (string, bool, error) {
			now, err := d.meta()
			return fmt.Sprintf("epoch %d, %s old", now.Epoch, now.age()), now.Epoch > before.Epoch && now.age() < 3*time.Second, err
		})
		d.awaitDirectory("  the directory", services, nil)
		d.awaitReady("  the coordinators", nil)
		// The first and the second round of checks of the new leader.
		d.pause(2 * d.interval)
	})
}

// short returns the names as one text.
func short(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}
