// Package rollcallv1 is Rollcall's wire and log contract, generated from the .proto files beside it, and the bounds
// of what it carries.
package rollcallv1

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
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

	// MaxImportServices and MaxImportBytes bound an import. It has at most as many owners as services.
	MaxImportServices = 1_000_000
	MaxImportBytes    = 256 << 20
	// MaxImportPartBytes bounds one message of an import.
	MaxImportPartBytes = 1 << 20
)

// KindRelayer is the kind whose services receive transactions.
const KindRelayer = "relayer"

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
	vs := s.ValidateStored()
	if s.GetKind() != KindRelayer || slices.ContainsFunc(vs, func(v Violation) bool { return v.Field == "worker_ref.url" }) {
		return vs
	}
	if err := checkRelayerURL(s.GetWorkerRef().GetUrl()); err != nil {
		vs = append(vs, Violation{"worker_ref.url", err.Error()})
	}
	return vs
}

// ValidateStored is like Validate for a service of a backup or of the directory, which an earlier version may have registered: it
// leaves out the rules of the service's kind.
func (s *Service) ValidateStored() []Violation {
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
	if err := checkText(ref.GetNode(), 0, MaxNodeBytes); err != nil {
		add("worker_ref.node", "%v", err)
	}
	if n := len(ref.GetLabels()); n > MaxLabels {
		add("worker_ref.labels", "has %d labels, at most %d are allowed", n, MaxLabels)
	} else {
		for k, v := range ref.GetLabels() {
			if err := checkText(k, 1, MaxLabelKeyBytes); err != nil {
				add("worker_ref.labels", "key %.70q %v", k, err)
			}
			if err := checkText(v, 0, MaxLabelValueBytes); err != nil {
				add("worker_ref.labels", "value of %.70q %v", k, err)
			}
		}
	}
	// Each part may be within its bounds and the whole not.
	if n := proto.Size(s); n > MaxServiceBytes {
		add("worker_ref", "makes a service of %d bytes, at most %d are allowed", n, MaxServiceBytes)
	}
	slices.SortFunc(vs, func(a, b Violation) int { return strings.Compare(a.String(), b.String()) })
	return vs
}

func checkText(s string, least, most int) error {
	switch {
	case len(s) < least:
		return errors.New("is empty")
	case len(s) > most:
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(s), most)
	case !utf8.ValidString(s):
		return errors.New("is not valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		// It would reach the terminals of those who list the directory.
		return errors.New("holds control characters")
	}
	return nil
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
	if raw == "" {
		return fmt.Errorf("is empty; it must be a URL such as %q", "http://oz-relayer-1:3000")
	}
	if err := checkText(raw, 1, MaxURLBytes); err != nil {
		return err
	}
	u, err := url.Parse(raw)
	if scheme, _, found := strings.Cut(raw, ":"); !strings.Contains(raw, "://") && (!found || !slices.Contains(Schemes, scheme)) {
		last := len(Schemes) - 1
		return fmt.Errorf("has no scheme; begin with %s:// or %s://", strings.Join(Schemes[:last], "://, "), Schemes[last])
	}
	if err != nil {
		// url.Error repeats the whole input, which may hold a password.
		return errors.New("does not parse as a URL")
	}
	switch {
	case !slices.Contains(Schemes, u.Scheme):
		return fmt.Errorf("has the scheme %.20q; known are %s", u.Scheme, strings.Join(Schemes, ", "))
	case u.Hostname() == "":
		return errors.New("has no host")
	case u.User != nil:
		return errors.New("holds a user name or password, which readers of the directory would see; use an auth header")
	case u.Scheme != "http" && u.Scheme != "https" && u.Port() == "":
		return fmt.Errorf("has no port, which %s:// needs", u.Scheme)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("has the port %.20s; ports are 1 to 65535", port)
		}
	}
	return nil
}

// checkRelayerURL reports why a relay consumer would refuse a valid URL: it appends the paths of the relayer's HTTP API.
func checkRelayerURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New("does not parse as a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("has the scheme %q; a relayer needs http:// or https://, because consumers call its HTTP API", u.Scheme)
	case u.RawQuery != "" || u.ForceQuery:
		return errors.New("has a query, which a relayer's URL must not have; set the health check's path at the coordinator")
	case u.Fragment != "":
		return errors.New("has a fragment, which a relayer's URL must not have; remove the part from # on")
	}
	return nil
}
