package raftstore

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// NewHCLog returns a logger for HashiCorp's libraries that writes to logger at the same level. It drops trace
// messages.
func NewHCLog(logger *slog.Logger) hclog.Logger { return &hcLogger{slog: logger} }

type hcLogger struct {
	slog    *slog.Logger
	name    string
	implied []any
}

func (l *hcLogger) Log(level hclog.Level, msg string, args ...any) {
	if to, ok := slogLevel(level); ok {
		l.slog.Log(context.Background(), to, msg, attributes(args)...) //nolint:sloglint // the libraries' words
	}
}

func (l *hcLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *hcLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *hcLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *hcLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *hcLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *hcLogger) IsTrace() bool { return false }
func (l *hcLogger) IsDebug() bool { return l.enabled(slog.LevelDebug) }
func (l *hcLogger) IsInfo() bool  { return l.enabled(slog.LevelInfo) }
func (l *hcLogger) IsWarn() bool  { return l.enabled(slog.LevelWarn) }
func (l *hcLogger) IsError() bool { return l.enabled(slog.LevelError) }

func (l *hcLogger) enabled(level slog.Level) bool {
	return l.slog.Enabled(context.Background(), level)
}

func (l *hcLogger) GetLevel() hclog.Level {
	switch {
	case l.IsDebug():
		return hclog.Debug
	case l.IsInfo():
		return hclog.Info
	case l.IsWarn():
		return hclog.Warn
	default:
		return hclog.Error
	}
}

// SetLevel does nothing, because the slog handler has the level.
func (l *hcLogger) SetLevel(hclog.Level) {}

func (l *hcLogger) ImpliedArgs() []any { return l.implied }
func (l *hcLogger) Name() string       { return l.name }

func (l *hcLogger) With(args ...any) hclog.Logger {
	return &hcLogger{
		slog:    l.slog.With(attributes(args)...),
		name:    l.name,
		implied: append(slices.Clip(l.implied), args...),
	}
}

func (l *hcLogger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

// ResetNamed only stores the name, because slog's attributes identify the source of a line.
func (l *hcLogger) ResetNamed(name string) hclog.Logger {
	return &hcLogger{slog: l.slog, name: name, implied: l.implied}
}

func (l *hcLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.slog.Handler(), slog.LevelInfo)
}

func (l *hcLogger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(opts).Writer()
}

func slogLevel(level hclog.Level) (slog.Level, bool) {
	switch level {
	case hclog.Debug:
		return slog.LevelDebug, true
	case hclog.Info, hclog.NoLevel:
		return slog.LevelInfo, true
	case hclog.Warn:
		return slog.LevelWarn, true
	case hclog.Error:
		return slog.LevelError, true
	default:
		return 0, false
	}
}

// attributes adapts keys and values. Errors get the key "err". Values that a handler would print as a number or a Go
// structure become text.
func attributes(args []any) []any {
	args = slices.Clone(args)
	for i := range args {
		switch {
		case i%2 == 0 && args[i] == "error":
			args[i] = "err"
		case i%2 == 1:
			args[i] = readable(args[i])
		}
	}
	return args
}

func readable(value any) any {
	switch v := value.(type) {
	case hclog.Format:
		if format, ok := v[0].(string); ok {
			return fmt.Sprintf(format, v[1:]...)
		}
		return fmt.Sprint(v...)
	case error:
		return v
	case fmt.Stringer:
		return v.String()
	default:
		return v
	}
}
