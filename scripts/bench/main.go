// Command bench measures Rollcall and its peers: an etcd cluster, a bare net/http client, plain Postgres, a bare geth, and loops that
// read events.
// Servers run in their own processes, on loopback and the same disk. Contenders take turns, and the figures are medians
// over the rounds.
//
// Without a subcommand it starts the processes, loads them, prints a table and writes JSON. The subcommands are the process
// that health checks and webhooks are sent to, and the topic of escrow events.
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
	if len(args) == 3 && args[0] == "targets" {
		return targets(ctx, args[1], args[2])
	}
	if len(args) == 3 && args[0] == "topic" {
		return serveTopic(ctx, args[1], args[2])
	}
	return conduct(ctx, args)
}

// sections are groups of rows that are measured together.
var sections = []struct {
	name string
	run  step
}{
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
	{"relaypath", relayPath},
	{"escrow", escrow},
	{"memory", memory},
}

// suite is the state that the sections share.
type suite struct {
	scale
	rollcall, etcd string // binaries
	dir            string // of this run's processes
	rows           []row
	missing        []string // rows without a value
	samples        map[string][]float64
	repeated       int // measurements, after an error
}

// scale is the duration and the size of the measurements.
type scale struct {
	short        bool
	rounds       int
	warm, window time.Duration
	kills        int
	calm         time.Duration // in which no election may happen
	checking     time.Duration
	services     int // of the largest directory
	burst        int // transactions posted as fast as possible
	waiting      int // transactions that wait for a key while others are posted
	paced        time.Duration
	steady       time.Duration // in which memory may not grow
	backfill     int           // events of as many escrows that an escrow monitor reads
	escrows      []int         // that are watched while calls to nodes are counted
	calling      time.Duration // in which they are counted, of a block a second
	// confirmations is how many blocks, of a second each, make a transaction final. The relayer's default makes most of the short form's
	// time a wait.
	confirmations int
}

var (
	fullScale = scale{rounds: 5, warm: time.Second, window: 4 * time.Second, kills: 20, calm: 5 * time.Minute,
		checking: 40 * time.Second, services: 1_000_000, burst: 40_000, waiting: 100_000, paced: 20 * time.Second, steady: 10 * time.Minute,
		backfill: 100_000, escrows: []int{10_000, 100_000}, calling: 96 * time.Second, confirmations: 12}
	shortScale = scale{short: true, rounds: 1, warm: 300 * time.Millisecond, window: time.Second, kills: 2, calm: 10 * time.Second,
		checking: 8 * time.Second, services: 50_000, burst: 4_000, waiting: 10_000, paced: 4 * time.Second, steady: 25 * time.Second,
		backfill: 10_000, escrows: []int{10_000}, calling: 4 * time.Second, confirmations: 3}
)

func conduct(ctx context.Context, args []string) error {
	var names []string
	for _, sec := range sections {
		names = append(names, sec.name)
	}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	short := flags.Bool("short", false, "some minutes: one round, few kills, a small directory")
	only := flags.String("only", strings.Join(names, ","), "comma-separated sections to run")
	s := &suite{scale: fullScale, rows: []row{}, samples: make(map[string][]float64)}
	flags.StringVar(&s.rollcall, "rollcall", "bin/rollcall", "the product's binary")
	flags.StringVar(&s.etcd, "etcd", "build/bench/etcd", "etcd's binary")
	flags.StringVar(&s.dir, "dir", "build/bench/run", "where the processes keep data; emptied first")
	out := flags.String("out", "build/bench.json", "where the rows are written")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *short {
		s.scale = shortScale
	}
	var errs []error
	for _, path := range []*string{&s.rollcall, &s.etcd, &s.dir} {
		abs, err := filepath.Abs(*path)
		*path, errs = abs, append(errs, err)
	}
	wanted := strings.Split(*only, ",")
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("no section is called %q; there are %s", name, strings.Join(names, ", ")))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	start, err := readMachineUse()
	if err := errors.Join(err, os.RemoveAll(s.dir), os.MkdirAll(s.dir, 0o755)); err != nil {
		return err
	}
	before := start
	for _, sec := range sections {
		if !slices.Contains(wanted, sec.name) || ctx.Err() != nil {
			continue
		}
		progress("== %s", sec.name)
		began, rows := time.Now(), len(s.rows)
		if err := s.try(ctx, sec.run); err != nil {
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
		errs = append(errs, writeJSON(*out, s.rows))
	}
	s.add("cores busy with others during the run", before.others(start), "cores")
	s.add("measurements repeated after an error", float64(s.repeated), "")
	errs = append(errs, writeJSON(*out, s.rows))
	printTable(os.Stdout, s.rows)
	if len(wanted) == len(sections) {
		s.missing = append(s.missing, absent(s.rows)...)
	}
	if len(s.missing) > 0 {
		errs = append(errs, fmt.Errorf("rows without a value: %s", strings.Join(s.missing, "; ")))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// sample adds a measured value to the samples of its name.
func (s *suite) sample(name string, value float64, unit string) {
	s.samples[name] = append(s.samples[name], value)
	progress("%-66s %12s %s", name, number(value), unit)
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
