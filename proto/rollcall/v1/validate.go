package rollcallv1

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of what a caller may send. A coordinator checks them before it proposes anything; a gateway
// checks them earlier, to name the file or process at fault.
const (
	MaxServicesPerCall = 10_000
	MaxBytesPerCall    = 4 << 20
	MaxServiceBytes    = 16 << 10
	MaxURLBytes        = 2048
	MaxNodeBytes       = 253
	MaxLabels          = 64
	MaxLabelKeyBytes   = 63
	MaxLabelValueBytes = 256
	maxDNSLabelBytes   = 63
)

// Schemes are the URL schemes a health check knows how to probe.
var Schemes = []string{"http", "https", "grpc", "grpcs", "tcp"}

// Violation is one thing wrong with a message: which field, and how to mend it.
type Violation struct {
	Field       string
	Description string
}

func (v Violation) String() string { return v.Field + ": " + v.Description }

// Validate reports everything wrong with the service; none when it may be registered.
// Field names are relative to the service.
func (s *Service) Validate() []Violation {
	var vs []Violation
	add := func(field, format string, args ...any) {
		vs = append(vs, Violation{field, fmt.Sprintf(format, args...)})
	}
	if err := CheckDNSLabel(s.GetId()); err != nil {
		add("id", "%v", err)
	}
	if err := CheckDNSLabel(s.GetKind()); err != nil {
		add("kind", "%v", err)
	}
	ref := s.GetWorkerRef()
	if err := checkURL(ref.GetUrl()); err != nil {
		add("worker_ref.url", "%v", err)
	}
	if n := len(ref.GetNode()); n > MaxNodeBytes {
		add("worker_ref.node", "has %d bytes, at most %d are allowed", n, MaxNodeBytes)
	}
	if n := len(ref.GetLabels()); n > MaxLabels {
		add("worker_ref.labels", "has %d labels, at most %d are allowed", n, MaxLabels)
		return vs
	}
	for k, v := range ref.GetLabels() {
		if k == "" || len(k) > MaxLabelKeyBytes {
			add("worker_ref.labels", "key %.70q must have 1 to %d bytes", k, MaxLabelKeyBytes)
		}
		if len(v) > MaxLabelValueBytes {
			add("worker_ref.labels", "value of %.70q has %d bytes, at most %d are allowed", k, len(v), MaxLabelValueBytes)
		}
	}
	slices.SortFunc(vs, func(a, b Violation) int { return strings.Compare(a.String(), b.String()) })
	return vs
}

// CheckDNSLabel reports why s is not a DNS label (RFC 1123): 1 to 63 of a-z, 0-9 and '-', neither first nor
// last a '-'.
func CheckDNSLabel(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty; it must be a DNS label such as %q", "oz-relayer-1")
	case len(s) > maxDNSLabelBytes:
		return fmt.Errorf("has %d bytes; a DNS label has at most %d", len(s), maxDNSLabelBytes)
	case s[0] == '-' || s[len(s)-1] == '-':
		return fmt.Errorf("%q begins or ends with '-', which a DNS label must not", s)
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("%q is not a DNS label: only a-z, 0-9 and '-' are allowed", s)
		}
	}
	return nil
}

func checkURL(raw string) error {
	switch {
	case raw == "":
		return fmt.Errorf("is empty; it must be a URL such as %q", "http://oz-relayer-1:3000")
	case len(raw) > MaxURLBytes:
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(raw), MaxURLBytes)
	case !utf8.ValidString(raw):
		return fmt.Errorf("is not valid UTF-8")
	}
	u, err := url.Parse(raw)
	if err != nil {
		// url.Error repeats the whole input, which may hold a password.
		return fmt.Errorf("does not parse as a URL")
	}
	switch {
	case !slices.Contains(Schemes, u.Scheme):
		return fmt.Errorf("has the scheme %.20q; known are %s", u.Scheme, strings.Join(Schemes, ", "))
	case u.Hostname() == "":
		return fmt.Errorf("has no host")
	case u.User != nil:
		return fmt.Errorf("holds a user name or password, which readers of the directory would see; use an auth header")
	case u.Scheme != "http" && u.Scheme != "https" && u.Port() == "":
		return fmt.Errorf("has no port, which %s:// needs", u.Scheme)
	}
	return nil
}
