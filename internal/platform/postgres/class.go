package postgres

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class returns the kind of a failure of the database or of a network, for pages that strangers may read: it has no name, address,
// port or user. It returns "" for another error.
func Class(err error) string {
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch answer.Code {
		case "57P01", "57P02", "57P03":
			return "starts or stops"
		case "53300":
			return "has no connection left"
		case "28000", "28P01":
			return "refuses the login"
		}
		return "answers with an error"
	}
	network, isNetwork := errors.AsType[net.Error](err)
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case errors.Is(err, ErrLocked):
		return "is migrated by another process"
	case errors.Is(err, context.DeadlineExceeded), isNetwork && network.Timeout():
		return "does not answer in time"
	case isNetwork, isConnect, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "unreachable"
	}
	return ""
}
