package process

import (
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// LogFlags say what a long-running command logs, to standard error.
type LogFlags struct {
	Level  string `env:"ROLLCALL_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"Least severe level that is logged."`
	Format string `env:"ROLLCALL_LOG_FORMAT" enum:"json,text" default:"json" help:"How log lines look."`
}

// Logger writes to w, up to the failure, if there is one, that is to be the last line: lines of goroutines that still run then,
// to the end of the process, are dropped.
func (l *LogFlags) Logger(w io.Writer) (log *slog.Logger, failure func(msg string, err *error)) {
	until := &closableWriter{w: w}
	return slog.New(l.handler(until)), func(msg string, err *error) {
		if *err != nil {
			until.close()
			slog.New(l.handler(w)).Error(msg, "err", *err) //nolint:sloglint // constant where it is called
			*err = loggedError{*err}
		}
	}
}

func (l *LogFlags) handler(w io.Writer) slog.Handler {
	options := &slog.HandlerOptions{}
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(l.Level)); err == nil { // the flag's enum allows no other
		options.Level = level
	}
	if l.Format == "text" {
		return tracing.LogIDs(slog.NewTextHandler(w, options))
	}
	return tracing.LogIDs(slog.NewJSONHandler(w, options))
}

// loggedError is an error that is in the log already.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }

// IsLogged reports whether an error is in the log already, as that of [Role.Run] is.
func IsLogged(err error) bool {
	_, ok := errors.AsType[loggedError](err)
	return ok
}

// closableWriter lets whole lines through until it is closed.
type closableWriter struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
}

func (g *closableWriter) Write(line []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return len(line), nil
	}
	return g.w.Write(line)
}

func (g *closableWriter) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
