// Command drill breaks a composed cluster in every way that Rollcall must survive, and prints the observations.
//
// It expects the running, healthy project of scripts/compose.sh drill, uses only its containers, and exits with 1 if any
// result differs from the guarantees. A row that is as promised, but after its limit, is late. An overloaded machine has such rows, so
// they fail the drill only after five times the limit, and are repeated at the end. Two checks prove that no healthy relayer is ever missing: no command in Redis's
// own MONITOR removes one, and a reader that polls always finds each of them.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

func main() {
	d := &drill{out: os.Stdout, start: time.Now()}
	fmt.Fprintf(d.out, rowFormat, "step", "expected", "seen", "seconds", "limit", "ok")
	err := d.attempt(d.steps)
	// Repeated, because a log of CI may show only its end.
	if len(d.late) > 0 {
		fmt.Fprintf(d.out, "%d of %d rows were late:\n%s", len(d.late), d.rows, strings.Join(d.late, ""))
	}
	if err == nil && len(d.failed) > 0 {
		err = fmt.Errorf("%d of %d rows differ from what was promised:\n%s", len(d.failed), d.rows, strings.Join(d.failed, ""))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "drill:", err)
		os.Exit(1)
	}
	fmt.Fprintf(d.out, "all %d rows as promised, %d of them late\n", d.rows, len(d.late))
}

type drill struct {
	out          io.Writer
	rows         int
	failed, late []string          // rows
	start        time.Time         // of the next row's time
	docker       time.Duration     // of that time, which Docker's own commands take
	err          error             // that ended the attempt
	containers   map[string]string // ids by service
	relayedIDs   []common.Hash     // of the transactions of the relay path
}

func (d *drill) steps() {
	d.find()
	d.allUp()
	d.guarded(relayers[:2], d.relayerStops)
	d.guarded(relayers, d.leaderKilled)
	d.guarded(relayers, d.leaderCutOff)
	d.guarded(relayers, d.leaderPaused)
	d.redisRestarted()
	d.guarded(relayers, d.gatewayKilled)
	d.guarded(relayers, d.coordinatorsStopped)
	d.transactionsMined()
	d.relayerKilled()
	d.storeStopped()
	d.relayPathSurvives()
	d.monitorSurvives()
}

// attempt runs f on a goroutine, which check may end, and returns the error that ended it.
func (d *drill) attempt(f func()) error {
	var attempt sync.WaitGroup
	attempt.Go(f)
	attempt.Wait()
	err := d.err
	d.err = nil
	return err
}

// check ends the attempt if there is an error, as an assertion ends a test.
func (d *drill) check(err error) {
	if err != nil {
		d.err = err
		runtime.Goexit()
	}
}

const rowFormat = "%-52s %-46s %-52s %8s %6s  %s\n"

// begin begins the time of the next row.
func (d *drill) begin() { d.start, d.docker = time.Now(), 0 }

// lateFor is how many limits a row may take until it fails.
const lateFor = 5

// row prints a row of the table. Its time began with the last act, or at the row before. A limit of 0 is none. Another one is
// printed with the time that Docker's commands took in the act and in the last look, because a busy machine delays them.
func (d *drill) row(step, expected, seen string, limit time.Duration, ok bool) {
	took, most, late := time.Since(d.start), "-", false
	if limit > 0 {
		most = fmt.Sprintf("%.1f", (limit + d.docker).Seconds())
		late, ok = took > limit+d.docker, ok && took <= lateFor*limit+d.docker
	}
	line := func(verdict string) string {
		return fmt.Sprintf(rowFormat, step, expected, seen, fmt.Sprintf("%.1f", took.Seconds()), most, verdict)
	}
	row := line("ok")
	switch {
	case !ok:
		row = line("FAIL")
		d.failed = append(d.failed, row)
	case late:
		row = line("late")
		d.late = append(d.late, row)
	}
	d.rows++
	fmt.Fprint(d.out, row)
	d.begin()
}

// await calls read until it returns the expected text, or the row has failed, and prints a row with the last text, or the error.
func (d *drill) await(step, expected string, limit time.Duration, read func() string) {
	d.awaitThat(step, expected, limit, func() (string, bool) {
		seen := read()
		return seen, seen == expected
	})
}

// awaitThat is await for a look that reports itself whether it is as expected.
func (d *drill) awaitThat(step, expected string, limit time.Duration, look func() (seen string, ok bool)) {
	for act := d.docker; ; time.Sleep(50 * time.Millisecond) {
		d.docker = act
		seen, ok := "", false
		if err := d.attempt(func() { seen, ok = look() }); err != nil {
			seen = err.Error()
		}
		if ok || time.Since(d.start) > lateFor*limit+d.docker {
			d.row(step, expected, seen, limit, ok)
			return
		}
	}
}

func (d *drill) awaitReady(step string) {
	d.await(step, fmt.Sprint(coordinators), startLimit, d.ready)
}

// awaitMeta waits until the leader's record is as expected, and returns it.
func (d *drill) awaitMeta(step, expected string, limit time.Duration, ok func(now meta) bool) (now meta) {
	d.awaitThat(step, expected, limit, func() (string, bool) {
		now = d.meta()
		return fmt.Sprintf("%s, epoch %d, updated %s", now.Leader, now.Epoch, now.UpdatedAt.Format(time.TimeOnly)), ok(now)
	})
	return now
}

// depose runs a Docker command on the leader, and waits until another one has claimed Redis under a higher epoch.
func (d *drill) depose(step, command string, old meta) (claim meta) {
	d.act(command, old.Leader)
	expected := fmt.Sprintf("another leader, epoch above %d", old.Epoch)
	return d.awaitMeta(step+" "+old.Leader+", the leader", expected, 5*time.Second, func(now meta) bool {
		return now.Epoch > old.Epoch && now.Leader != old.Leader
	})
}

func (d *drill) allUp() {
	// The time is not the one of the start, because Compose has waited for healthy containers before.
	d.await("all up", fmt.Sprint(relayers), 15*time.Second, d.active)
	d.awaitReady("  the coordinators")
	for _, c := range coordinators {
		d.await("  GET /status of "+c, "200, healthy, 3 of 3 active", 10*time.Second, func() string {
			a := d.call(d.request(c, http.MethodGet, "/status", ""))
			return fmt.Sprintf("%d, %s, %d of %d active", a.code, a.Status, a.TotalActive, a.TotalConfigured)
		})
	}
	d.watch()
}

const (
	twoRounds = 2 * interval // of a new leader's checks
	// checkTimeout is how long a removal may take beyond the interval, by a check that meets a half-stopped container. It is three times
	// the default, because the checks of an overloaded machine are slow, and remove healthy relayers.
	checkTimeout = 1500 * time.Millisecond
	// startLimit is the limit for a container's start. No promise depends on it.
	startLimit = 30 * time.Second
	// stop is Docker's command that ends a container with SIGTERM, and with SIGKILL after 15 s.
	stop = "stop --time 15"
)

func (d *drill) relayerStops() {
	victim, others := relayers[2], relayers[:2]
	d.act("kill --signal TERM", victim) // returns at once, because checks may fail long before the container has stopped
	d.await("stop "+victim, fmt.Sprint(others), interval+checkTimeout, d.active)
	d.act("wait", victim)
	d.act("start", victim)
	d.awaitHealth("start "+victim, "200", startLimit, victim)
	d.await("  the set then", fmt.Sprint(relayers), interval+time.Second, d.active)
}

func (d *drill) leaderKilled() {
	old := d.meta()
	d.depose("kill", "kill", old)
	time.Sleep(twoRounds)
	d.act("start", old.Leader)
	d.awaitReady("start " + old.Leader)
}

func (d *drill) leaderCutOff() {
	old := d.meta()
	leader := old.Leader
	var shared, own []string // its peers' addresses that it reaches now; and those that it never reaches
	for _, peer := range coordinators {
		if peer != leader {
			ips := d.inspect(addresses, peer) // on the cluster's network, and on its own way to Redis
			shared = append(shared, "tcp://"+peer+".cluster:7400", "tcp://"+ips[0]+":7400")
			own = append(own, "tcp://"+ips[1]+":7400")
		}
	}
	d.reach(leader, "answers", shared...)
	const network = project + "_cluster"
	claim := d.depose("cut off", "network disconnect "+network, old)
	d.reach(leader, "does not answer", append(shared, own...)...)
	d.reach(leader, "answers", "tcp://redis:6379")
	d.reach(leader, "does not answer", readyURL)
	time.Sleep(twoRounds)
	d.silent("  the cut-off one", leader, claim, false)
	// Under its names in deploy/compose.yaml.
	d.act(fmt.Sprintf("network connect --alias %s --alias %[1]s.cluster %s", leader, network), leader)
	d.awaitReady("connect " + leader + " again")
}

// reach prints rows about whether addresses answer from inside a coordinator's container. One that should is tried again, because the
// tries of an overloaded machine may have no answer in time.
func (d *drill) reach(from, expected string, urls ...string) {
	d.begin()
	for _, url := range urls {
		if step := "  " + url + " from inside"; expected == "answers" {
			d.await(step, expected, 5*time.Second, func() string { return d.answers(from, url) })
		} else {
			seen := d.answers(from, url)
			d.row(step, expected, seen, 0, seen == expected)
		}
	}
}

func (d *drill) leaderPaused() {
	old := d.meta()
	claim := d.depose("pause", "pause", old)
	time.Sleep(interval)
	d.act("unpause", old.Leader)
	time.Sleep(twoRounds)
	d.silent("wake "+old.Leader, old.Leader, claim, true) // once it runs again, it may be elected again
	d.awaitReady("  the coordinators")
}

func (d *drill) redisRestarted() {
	before := d.meta()
	d.act("kill", "redis")
	d.act("start", "redis")
	d.await("restart Redis empty", fmt.Sprint(relayers), 10*time.Second, d.active)
	d.await("  it had kept nothing", "true", time.Second, func() string {
		info := d.redis("INFO", "persistence")
		return fmt.Sprint(strings.Contains(info, "rdb_last_load_keys_loaded:0\r") && strings.Contains(info, "aof_enabled:0\r"))
	})
	expected := fmt.Sprintf("the same cluster, epoch at least %d", before.Epoch)
	d.awaitMeta("  the fence", expected, 10*time.Second, func(now meta) bool {
		return now.Epoch >= before.Epoch && now.Cluster == before.Cluster
	})
	d.watch()
}

func (d *drill) gatewayKilled() {
	before := d.directory()
	d.act("kill", "gateway")
	time.Sleep(twoRounds)
	d.await("kill the gateway", before, 10*time.Second+twoRounds, d.directory)
	d.act("start", "gateway")
	ready := func() string { return d.answers("gateway", "http://127.0.0.1:7401/readyz") }
	d.await("start the gateway", "answers", startLimit, ready)
	time.Sleep(interval)
	d.await("  the directory then", before, 10*time.Second+twoRounds, d.directory)
}

func (d *drill) coordinatorsStopped() {
	services := d.directory()
	d.act(stop, coordinators...)
	d.await("stop all coordinators", "exit codes [0 0 0]", 20*time.Second, func() string {
		return fmt.Sprint("exit codes ", d.inspect("{{.State.ExitCode}}", coordinators...))
	})
	before := d.meta()
	time.Sleep(2 * interval)
	d.begin()
	d.awaitMeta("  the leader's record after two intervals", "not updated", time.Second, func(now meta) bool {
		return now.UpdatedAt.Equal(before.UpdatedAt)
	})
	d.await("  the set", fmt.Sprint(relayers), time.Second, d.active)
	d.act("start", coordinators...)
	expected := fmt.Sprintf("epoch above %d, updated again", before.Epoch)
	d.awaitMeta("start all coordinators", expected, startLimit, func(now meta) bool {
		return now.Epoch > before.Epoch && now.UpdatedAt.After(before.UpdatedAt)
	})
	d.await("  the directory", services, 10*time.Second+twoRounds, d.directory)
	d.awaitReady("  the coordinators")
	time.Sleep(twoRounds)
}
