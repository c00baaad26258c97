package gateway

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrTLSMismatch reports that this client and a coordinator likely disagree about whether connections use TLS. It
// comes with ErrNoLeader.
var ErrTLSMismatch = errors.New("TLS is likely used on one side only")

// expectsTLS and lacksTLS are the causes of a likely TLS mismatch.
const (
	expectsTLS = "it closed the connection at once and likely expects TLS, which this client does not use"
	lacksTLS   = "the TLS handshake failed and it likely does not use TLS, which this client does"
)

// answersHTTP is the cause if an address is an HTTP port, such as that of /status.
const answersHTTP = "it answers in HTTP/1.1 and is not a cluster port"

// noLeaderError is ErrNoLeader with the last response of each coordinator.
type noLeaderError struct {
	cause error // why the search ended; nil while it continues
	words string
}

func (e *noLeaderError) Error() string {
	if e.words == "" {
		return ErrNoLeader.Error()
	}
	return ErrNoLeader.Error() + ": " + e.words
}

func (e *noLeaderError) Unwrap() []error {
	all := []error{ErrNoLeader}
	if e.cause != nil {
		all = append(all, e.cause)
	}
	if strings.Contains(e.words, expectsTLS) || strings.Contains(e.words, lacksTLS) {
		all = append(all, ErrTLSMismatch)
	}
	return all
}

var (
	connectionError = regexp.MustCompile(`^connection error: desc = (".*")$`)
	dialed          = regexp.MustCompile(`dial tcp( \S+)?: (connect: )?`)
	between         = regexp.MustCompile(`(read|write) tcp \S+->\S+: ((read|write): )?`)
)

// causeOf returns why a ping failed, in plain words. tls reports whether this client uses TLS.
func causeOf(err error, tls bool, timeout time.Duration) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v", timeout)
	}
	s, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	text := s.Message()
	var wrapped interface{ GRPCStatus() *status.Status } // its message lacks the text that FromError adds for wrapping errors
	if errors.As(err, &wrapped) {
		text = wrapped.GRPCStatus().Message()
	}
	m := connectionError.FindStringSubmatch(text)
	if m == nil {
		if s.Code() == codes.Unknown {
			return text
		}
		return fmt.Sprintf("%s (%s)", text, s.Code())
	}
	if desc, err := strconv.Unquote(m[1]); err == nil {
		text = desc
	}
	text = between.ReplaceAllString(dialed.ReplaceAllString(text, ""), "")
	if why, ok := strings.CutPrefix(text, "error reading server preface: "); ok {
		switch {
		case strings.Contains(why, "looked like an HTTP/1.1 header"):
			return answersHTTP
		case !tls:
			return expectsTLS
		}
		return "it closed the connection at once: " + why
	}
	if why, ok := strings.CutPrefix(text, "transport: authentication handshake failed: "); ok {
		if why == "EOF" || strings.HasSuffix(why, "connection reset by peer") || strings.Contains(why, "does not look like a TLS handshake") {
			return lacksTLS
		}
		return "the TLS handshake failed: " + why
	}
	return strings.TrimPrefix(text, "transport: Error while dialing: ")
}
