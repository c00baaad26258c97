package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

const (
	floorCommitRow = "one row inserted and committed, beside half of that load"
	floorHTTPRow   = "GET of the relayer that needs nothing, beside half of that load"
	floorEvery     = 25 * time.Millisecond
)

const insertFloor = "INSERT INTO floor DEFAULT VALUES"

// floorConnections opens as many connections to the database as there are posting clients. Each has inserted one row.
func floorConnections(ctx context.Context, url string) (conns []*pgx.Conn, err error) {
	for len(conns) < relayConnections {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return conns, err
		}
		if conns = append(conns, conn); len(conns) == 1 {
			if _, err := conn.Exec(ctx, "CREATE TABLE floor (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz DEFAULT now())"); err != nil {
				return conns, err
			}
		}
		if _, err := conn.Exec(ctx, insertFloor); err != nil {
			return conns, err
		}
	}
	return conns, nil
}

// withFloor measures, while do runs, the lower bounds of a POST on this machine at that load: a small row, inserted and
// committed alone, and an answer of the same process that needs no other process.
func (s *suite) withFloor(ctx context.Context, r *relayed, do func(context.Context) error) error {
	conns, err := floorConnections(ctx, r.db.server.DatabaseURL("relay"))
	defer func() {
		for _, conn := range conns {
			conn.Close(context.WithoutCancel(ctx))
		}
	}()
	if err != nil {
		return err
	}
	turn := 0
	var probes errgroup.Group
	beside, stop := context.WithCancel(ctx)
	defer stop()
	latencies := map[string]*[]float64{floorCommitRow: {}, floorHTTPRow: {}}
	probe := func(row string, once func(context.Context) error) {
		probes.Go(func() error {
			for due := time.Now(); beside.Err() == nil; due = due.Add(floorEvery) {
				pause(beside, time.Until(due))
				if beside.Err() != nil {
					break
				}
				if err := once(ctx); err != nil {
					return err
				}
				*latencies[row] = append(*latencies[row], float64(time.Since(due)))
			}
			return nil
		})
	}
	probe(floorCommitRow, func(ctx context.Context) error {
		turn++
		_, err := conns[turn%len(conns)].Exec(ctx, insertFloor)
		return err
	})
	probe(floorHTTPRow, func(ctx context.Context) error {
		_, err := httpGet(ctx, "http://"+r.relayer.addr+"/api/v1/health")
		return err
	})
	err = do(ctx)
	stop()
	if err := errors.Join(err, probes.Wait()); err != nil {
		return err
	}
	for row, measured := range latencies {
		s.sample(row+", p50", milliseconds(time.Duration(quantile(*measured, 0.5))), "ms")
		s.sample(row+", p99", milliseconds(time.Duration(quantile(*measured, 0.99))), "ms")
	}
	return nil
}
