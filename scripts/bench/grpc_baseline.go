package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"

	"google.golang.org/grpc"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// bareServer answers the product's calls over gRPC and does nothing else. If client and server share a machine's cores,
// its rate is the upper bound for every gRPC service there.
type bareServer struct {
	rollcallv1.UnimplementedDiscoveryServiceServer
	records []*rollcallv1.ServiceRecord
}

func (s *bareServer) RegisterServices(_ context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
	return &rollcallv1.RegisterServicesResponse{Registered: uint32(len(req.Services))}, nil
}

func (s *bareServer) ListServices(context.Context, *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	return &rollcallv1.ListServicesResponse{Records: s.records}, nil
}

func grpcServer(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("grpc-server", flag.ExitOnError)
	listen := flags.String("listen", "", "address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	service := newService(0, "http://127.0.0.1:3000")
	widen(service)
	s := grpc.NewServer()
	rollcallv1.RegisterDiscoveryServiceServer(s, &bareServer{records: []*rollcallv1.ServiceRecord{{Service: service}}})
	defer context.AfterFunc(ctx, s.Stop)()
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// bareName returns the row of the bare call that limits a row of the product.
func (r callRow) bareName() string { return "gRPC alone: " + r.what + ", " + r.clients() }

// onBare measures the bare calls for rows.
func (s *suite) onBare(f *fleet, rows []callRow) step {
	return func(ctx context.Context) error {
		dir, err := s.freshDir("grpc")
		if err != nil {
			return err
		}
		addrs, err := freeAddresses(1)
		if err != nil {
			return err
		}
		p, err := self("grpc-server", dir, "grpc-server", "-listen", addrs[0])
		if err != nil {
			return err
		}
		defer p.kill()
		for _, row := range rows {
			res, err := bareCalls(ctx, addrs[0], f, s.load(row.callers), row)
			if err != nil {
				return fmt.Errorf("%s: %w", row.bareName(), err)
			}
			s.sample(row.bareName(), res.PerSecond, "/s")
		}
		return nil
	}
}

func bareCalls(ctx context.Context, addr string, f *fleet, l load, row callRow) (result, error) {
	all, closeAll, err := dialStubs(addr, l.Callers, row.shared)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	if row.what == listOne {
		return l.run(ctx, func(ctx context.Context, caller int) (int, error) {
			_, err := all[caller].ListServices(ctx, &rollcallv1.ListServicesRequest{Ids: []string{"bench"}}, grpc.WaitForReady(true))
			return 1, err
		})
	}
	registrars := make([]*registrar, l.Callers)
	for i, stub := range all {
		registrars[i] = newRegistrar(func(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
			return stub.RegisterServices(ctx, req, grpc.WaitForReady(true))
		}, f, i, keysPerCaller)
	}
	return l.run(ctx, func(ctx context.Context, caller int) (int, error) { return registrars[caller].register(ctx, 1) })
}
