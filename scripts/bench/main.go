// Command bench measures Rollcall and the parts and peers that it is compared with: raw hashicorp/raft on bolt, an etcd
// cluster, a bare net/http client, and a bare geth. Each runs in its own process on loopback and the same disk.
// Contenders take turns, and the figures are medians over the rounds.
//
// Without a subcommand it starts the processes, loads them, prints a table and writes JSON. The subcommands are the
// processes that it starts of itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "raft-node":
			return raftNode(ctx, args[1:])
		case "grpc-server":
			return grpcServer(ctx, args[1:])
		case "targets":
			return targets(ctx, args[1:])
		case "http-client":
			return httpClient(ctx, args[1:])
		case "checker":
			return checker(ctx, args[1:])
		case "allocator":
			return allocator(ctx, args[1:])
		case "webhook-target":
			return webhookTarget(ctx, args[1:])
		}
	}
	return conduct(ctx, args)
}

// section is a group of rows that are measured together.
type section struct {
	name string
	run  func(context.Context, *suite) error
}

var sections = []section{
	{"writes", writes},
	{"batches", batches},
	{"reads", reads},
	{"failover", failover},
	{"elections", elections},
	{"checks", checks},
	{"saturation", saturation},
	{"status", status},
	{"million", million},
	{"allocate", allocation},
	{"relay", relay},
	{"memory", memory},
}

// suite is the state that the sections share.
type suite struct {
	scale
	rollcall, etcd, geth string // binaries
	dir                  string // of this run's processes
	rows                 []row
	missing              []string // rows without a value
	samples              map[string][]float64
	repeated             int  // measurements, after an error
	statements           bool // Postgres counts them
}

// scale is the duration and the size of the measurements.
type scale struct {
	short        bool
	rounds       int
	warm, window time.Duration
	kills        int
	calm         time.Duration // in which no election may happen
	checking     time.Duration
	intervals    []time.Duration // of the services that are checked
	services     int             // of the largest directory
	burst        int             // transactions posted as fast as possible
	paced        time.Duration
	steady       time.Duration // in which memory may not grow
}

var (
	fullScale = scale{rounds: 5, warm: time.Second, window: 4 * time.Second, kills: 20,
		calm: 5 * time.Minute, checking: 40 * time.Second, intervals: []time.Duration{10 * time.Second, time.Second}, services: 1_000_000,
		burst: 40_000, paced: 20 * time.Second, steady: 10 * time.Minute}
	shortScale = scale{short: true, rounds: 1, warm: 300 * time.Millisecond, window: time.Second, kills: 2,
		calm: 10 * time.Second, checking: 8 * time.Second, intervals: []time.Duration{2 * time.Second, time.Second}, services: 50_000,
		burst: 4_000, paced: 4 * time.Second, steady: 25 * time.Second}
)

func conduct(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	short := flags.Bool("short", false, "some minutes: one round, few kills, a small directory")
	only := flags.String("only", "", "comma-separated sections to run: "+strings.Join(sectionNames(), ", "))
	rounds := flags.Int("rounds", 0, "rounds over which medians are taken")
	window := flags.Duration("window", 0, "how long each throughput is measured")
	rollcall := flags.String("rollcall", "bin/rollcall", "the product's binary")
	etcd := flags.String("etcd", "build/bench/etcd", "etcd's binary")
	geth := flags.String("geth", "build/tools/geth", "geth's binary")
	statements := flags.Bool("statements", false, "say which statements of the relayer take Postgres most time; it costs some of it")
	dir := flags.String("dir", "build/bench/run", "where the processes keep data and logs; emptied first")
	out := flags.String("out", "build/bench.json", "where the rows are written")
	if err := flags.Parse(args); err != nil {
		return err
	}

	s := &suite{scale: fullScale, samples: make(map[string][]float64), statements: *statements}
	if *short {
		s.scale = shortScale
	}
	if *rounds > 0 {
		s.rounds = *rounds
	}
	if *window > 0 {
		s.window = *window
	}
	var errs []error
	for _, p := range []struct {
		to   *string
		path string
	}{{&s.rollcall, *rollcall}, {&s.etcd, *etcd}, {&s.geth, *geth}, {&s.dir, *dir}} {
		abs, err := filepath.Abs(p.path)
		*p.to, errs = abs, append(errs, err)
	}
	wanted := sectionNames()
	if *only != "" {
		wanted = strings.Split(*only, ",")
		for _, name := range wanted {
			if !slices.Contains(sectionNames(), name) {
				errs = append(errs, fmt.Errorf("no section is called %q; there are %s", name, strings.Join(sectionNames(), ", ")))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}

	start, err := readMachineUse()
	if err != nil {
		return err
	}
	before := start
	for _, sec := range sections {
		if !slices.Contains(wanted, sec.name) || ctx.Err() != nil {
			continue
		}
		progress("== %s", sec.name)
		began, rows := time.Now(), len(s.rows)
		if err := sec.run(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", sec.name, err))
			progress("%s: %v", sec.name, err)
		} else if len(s.rows) == rows {
			s.missing = append(s.missing, "every row of "+sec.name)
		}
		progress("%s took %s", sec.name, time.Since(began).Round(time.Second))
		after, err := readMachineUse()
		if err != nil {
			return err
		}
		progress("%.2f cores were busy with others", after.others(before))
		before = after
		// Written after each section, so that a later failure loses no results.
		if err := writeJSON(*out, s.rows); err != nil {
			return err
		}
	}
	s.add("cores busy with others during the run", before.others(start), "cores")
	s.add("measurements repeated after an error", float64(s.repeated), "")
	if err := writeJSON(*out, s.rows); err != nil {
		return err
	}
	printTable(os.Stdout, s.rows)
	if len(s.missing) > 0 {
		errs = append(errs, fmt.Errorf("rows without a value: %s", strings.Join(s.missing, "; ")))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func sectionNames() []string {
	names := make([]string, len(sections))
	for i, sec := range sections {
		names[i] = sec.name
	}
	return names
}

// step measures one contender.
type step func(context.Context) error

// inRounds runs each step once a round, in reversed order every other round, so that no contender is always first.
func (s *suite) inRounds(ctx context.Context, steps ...step) error {
	for round := range s.rounds {
		progress("round %d of %d", round+1, s.rounds)
		turn := slices.Clone(steps)
		if round%2 == 1 {
			slices.Reverse(turn)
		}
		for _, step := range turn {
			err := step(ctx)
			for tries := 1; err != nil && tries < 3 && ctx.Err() == nil; tries++ {
				// An election, of a peer even, spoils one measurement, not the rest.
				progress("again: %v", err)
				s.repeated++
				err = step(ctx)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// onRaft, onEtcd and onRollcall return steps that each have a new cluster.
func (s *suite) onRaft(variant string, measure func(context.Context, *raftCluster) error) step {
	return onCluster(variant, func(ctx context.Context) (*raftCluster, error) { return s.startRaft(ctx, variant) }, measure)
}

func (s *suite) onEtcd(measure func(context.Context, *etcdCluster) error) step {
	return onCluster("etcd", s.startEtcd, measure)
}

func (s *suite) onRollcall(interval time.Duration, measure func(context.Context, *rollcallCluster) error) step {
	return onCluster("rollcall", func(ctx context.Context) (*rollcallCluster, error) { return s.startRollcall(ctx, interval) }, measure)
}

func onCluster[C interface{ close() }](name string, start func(context.Context) (C, error), measure func(context.Context, C) error) step {
	return func(ctx context.Context) error {
		c, err := start(ctx)
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		defer c.close()
		if err := measure(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return ctx.Err()
	}
}

// sample adds a measured value to the samples of its name.
func (s *suite) sample(name string, value float64, unit string) {
	s.samples[name] = append(s.samples[name], value)
	progress("%-66s %12s %s", name, number(value), unit)
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
