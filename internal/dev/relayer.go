package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// ServeRelayer pretends to be a relayer until ctx ends: it answers /health.
func ServeRelayer(ctx context.Context, id, listen string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "ok", "id": id, "pid": os.Getpid()})
	})
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("relayer %s: %w", id, err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 2 * time.Second}
	defer context.AfterFunc(ctx, func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(stop)
	})()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("relayer %s: %w", id, err)
	}
	return nil
}
