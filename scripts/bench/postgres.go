package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
)

// database is a separate PostgreSQL, with the product's settings: fsync on, a commit answers when it is on the disk.
type database struct {
	server *pgserver.Server
	dirs   []string
}

func (s *suite) startPostgres(ctx context.Context) (d *database, err error) {
	preferred, err := s.freshDir("postgres")
	if err != nil {
		return nil, err
	}
	d = &database{dirs: []string{preferred}}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	dir, err := pgserver.Folder(ctx, preferred, "")
	if err != nil {
		return nil, err
	}
	d.dirs = append(d.dirs, dir)
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	var settings map[string]string
	if s.statements {
		settings = map[string]string{"shared_preload_libraries": "pg_stat_statements", "track_io_timing": "on"}
	}
	d.server, err = pgserver.Start(ctx, pgserver.Config{Dir: dir, Port: ports[0], Settings: settings})
	if err != nil {
		return nil, err
	}
	return d, d.durable(ctx)
}

// durable fails for a server that answers before a commit is on the disk, because measurements on it would be invalid.
func (d *database) durable(ctx context.Context) error {
	return d.do(ctx, d.server.URL(), func(conn *pgx.Conn) error {
		for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
			var value string
			if err := conn.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil {
				return err
			}
			if value != "on" {
				return fmt.Errorf("%s is %s", setting, value)
			}
		}
		return nil
	})
}

// fresh makes an empty database, flushes earlier writes, and returns the database's URL, a secret.
func (d *database) fresh(ctx context.Context, name string) (string, error) {
	err := d.do(ctx, d.server.URL(), func(conn *pgx.Conn) error {
		for _, sql := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name, "CHECKPOINT"} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	return d.server.DatabaseURL(name), err
}

func (d *database) do(ctx context.Context, url string, use func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return use(conn)
}

func (d *database) cpu() (time.Duration, error) { return postgresCPU(d.server.PID()) }

func (d *database) close() {
	if d.server != nil {
		_ = d.server.Kill() // its data is deleted with it
	}
	for _, dir := range d.dirs {
		os.RemoveAll(dir)
	}
}

// postgresCPU returns the processor time of a server so far: of the postmaster, its children, and those that have
// ended.
func postgresCPU(postmaster int) (time.Duration, error) {
	own, err := readTimes(postmaster)
	if err != nil {
		return 0, err
	}
	used := own.used + own.children
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return 0, err
		}
		child, err := readTimes(pid)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH): // ended meanwhile
		case err != nil:
			return 0, err
		case child.parent == postmaster:
			used += child.used
		}
	}
	return used, nil
}

// times are processor times of user code and kernel together.
type times struct {
	parent         int
	used, children time.Duration // of the process, and of its children that have ended
}

func readTimes(pid int) (t times, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return t, err
	}
	// After the command's name in parentheses: the parent is field 4 of the line, utime, stime, cutime and cstime are
	// fields 14 to 17.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 15 {
		return t, errors.New("/proc: short stat line")
	}
	var ticks [4]int64
	errs := make([]error, len(ticks)+1)
	t.parent, errs[len(ticks)] = strconv.Atoi(fields[1])
	for i := range ticks {
		ticks[i], errs[i] = strconv.ParseInt(fields[11+i], 10, 64)
	}
	// The kernel reports hundredths of a second here, regardless of its own ticks.
	const tick = 10 * time.Millisecond
	t.used, t.children = time.Duration(ticks[0]+ticks[1])*tick, time.Duration(ticks[2]+ticks[3])*tick
	return t, errors.Join(errs...)
}
