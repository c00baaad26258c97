package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
)

// databaseName is the database of the relayers' store.
const databaseName = "rollcall"

// database is the relayers' PostgreSQL. Its calls are not concurrent.
type database struct {
	data    string // the cluster's folder
	port    int
	urlFile string

	folder string           // set with server
	server *pgserver.Server // nil before the first start
}

// start starts the server; the first time with an empty database, because the chain starts again, too.
func (d *database) start(ctx context.Context) (process, error) {
	if d.server != nil {
		if err := d.server.Restart(ctx); err != nil {
			return nil, err
		}
		return d.run(), nil
	}
	folder, err := pgserver.Folder(ctx, filepath.Join(d.data, postgresID), "")
	if err != nil {
		return nil, err
	}
	server, err := pgserver.Start(ctx, pgserver.Config{Dir: folder, Port: d.port, Database: databaseName})
	if err != nil {
		return nil, err
	}
	d.folder, d.server = folder, server
	r := d.run()
	if err := errors.Join(d.empty(ctx), replace(d.urlFile, []byte(server.URL()+"\n"))); err != nil {
		r.kill()
		return nil, err
	}
	return r, nil
}

// empty drops the data of the last run.
func (d *database) empty(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.server.DatabaseURL("postgres"))
	if err != nil {
		return fmt.Errorf("empty the relay data: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range []string{"DROP DATABASE IF EXISTS ", "CREATE DATABASE "} {
		if _, err := conn.Exec(ctx, statement+databaseName); err != nil {
			return fmt.Errorf("empty the relay data: %w", err)
		}
	}
	return nil
}

// tidy removes the server's folder if it is outside of the cluster's, once the server has ended. The next start begins
// with an empty database anyway, and a user would not look for it there.
func (d *database) tidy() error {
	own, err := filepath.Abs(filepath.Join(d.data, postgresID))
	if err != nil || d.server == nil || d.folder == own {
		return err
	}
	return os.RemoveAll(d.folder)
}

// url returns the URL of the database, with its password; empty before the first start.
func (d *database) url() string {
	if d.server == nil {
		return ""
	}
	return d.server.URL()
}

func (d *database) run() *databaseRun {
	return &databaseRun{server: d.server, id: d.server.PID(), ended: d.server.Done()}
}

// databaseRun is the server between a start and its end.
type databaseRun struct {
	server  *pgserver.Server
	id      int
	ended   <-chan struct{}
	stopped atomic.Bool // by stop, without a kill
}

func (r *databaseRun) pid() int              { return r.id }
func (r *databaseRun) done() <-chan struct{} { return r.ended }

func (r *databaseRun) err() error {
	if r.stopped.Load() {
		return nil
	}
	return errors.New("the server ended")
}

func (r *databaseRun) kill() {
	_ = r.server.Kill() // there is nothing else to do
	<-r.ended
}

func (r *databaseRun) stop(limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r.stopped.Store(true) // on failure the caller gets false
	err := r.server.Stop(ctx)
	<-r.ended
	return err == nil
}
