package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/process"
)

// UsageError is a mistake in how a command was called that only shows once it runs.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// fixedError is an error with its remedy, for errors that explain does not know.
type fixedError struct {
	error
	fix string
}

func (e *fixedError) Unwrap() error { return e.error }

// WithFix adds the remedy to an error.
func WithFix(err error, format string, args ...any) error {
	return &fixedError{error: err, fix: fmt.Sprintf(format, args...)}
}

// exitError is an error with its exit code, for commands whose codes mean more than those of others.
type exitError struct {
	error
	code int
}

func (e *exitError) Unwrap() error { return e.error }

// withExit gives an error an exit code.
func withExit(err error, code int) error { return &exitError{err, code} }

// changesTag marks commands that change something: when one fails, whether it did is the first question.
const changesTag = "changes"

// explain returns the message about a failed command, with the remedy, and the exit code. The text is
// empty for what a role has logged. ctx is the command's: after an interrupt, the last error is only its effect.
func explain(ctx context.Context, node *kong.Node, err error) (text string, code int) {
	usage, isUsage := errors.AsType[UsageError](err)
	switch {
	case process.IsLogged(err) && isUsage:
		return "", ExitUsage
	case process.IsLogged(err):
		return "", ExitNotDone
	}
	command := node.FullPath()
	if isUsage {
		return fmt.Sprintf("%s: %v\nRun %q for its flags.", command, usage, command+" --help"), ExitUsage
	}
	what, code, cause := "", ExitNotDone, err
	if node.Tag.Has(changesTag) {
		what = "not done: "
	}
	if unknown, ok := errors.AsType[*gateway.UnknownOutcomeError](err); ok {
		what, code = "may be done or not: ", ExitUnknown
		err = errors.New(unknown.Cause)
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		code = exit.code
	}
	if ctx.Err() != nil {
		what += "interrupted: "
	}
	text = command + ": " + what + plain(err)
	if fix := fixFor(ctx, node, cause, code); fix != "" {
		text += "\n" + fix
	}
	return text, code
}

// plain is the error's text without what gRPC puts around a message.
func plain(err error) string {
	text := err.Error()
	if s, ok := errors.AsType[grpcError](err); ok {
		text = strings.ReplaceAll(text, s.Error(), s.GRPCStatus().Message())
	}
	return text
}

// hasFlag reports whether a command takes a flag.
func hasFlag(node *kong.Node, name string) bool {
	for _, group := range node.AllFlags(false) {
		if slices.ContainsFunc(group, func(f *kong.Flag) bool { return f.Name == name }) {
			return true
		}
	}
	return false
}

type grpcError interface {
	error
	GRPCStatus() *status.Status
}

func fixFor(ctx context.Context, node *kong.Node, err error, code int) string {
	if fixed, ok := errors.AsType[*fixedError](err); ok {
		return fixed.fix
	}
	if code == ExitUnknown && node.Tag.Has(changesTag) {
		return `Look before you repeat it: "rollcall services list" or "rollcall cluster status".`
	}
	if ctx.Err() != nil {
		return ""
	}
	if _, ok := errors.AsType[*gateway.ConflictError](err); ok {
		return "Change it where its owner defines it, or take it over with --force."
	}
	if _, ok := errors.AsType[*gateway.ForeignClusterError](err); ok {
		return "Check the addresses in --coordinators: they must belong to one cluster."
	}
	switch {
	case errors.Is(err, gateway.ErrTLSMismatch):
		return "Give --tls-cert, --tls-key and --tls-ca (ROLLCALL_TLS_CERT, …) if the coordinators use TLS, and none of them if they do not."
	case errors.Is(err, gateway.ErrNoLeader):
		return "Check --coordinators (ROLLCALL_COORDINATORS) and that a majority of the coordinators runs and can reach each other."
	case errors.Is(err, gateway.ErrNoQuorum), errors.Is(err, gateway.ErrNotEstablished):
		return `Try again shortly; "rollcall cluster status" shows which coordinators answer.`
	case errors.Is(err, context.DeadlineExceeded) && hasFlag(node, "timeout"):
		return "Try again, or give it longer with --timeout."
	case errors.Is(err, context.DeadlineExceeded):
		return "Try again."
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return "Use a certificate with the role operator: --tls-cert, --tls-key, --tls-ca."
	case codes.Unimplemented:
		return "The coordinator does not know this command; it runs another version."
	}
	return ""
}
