package main

import (
	"cmp"
	"crypto/tls"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/hostlist"
)

// probeFlags are how a service is asked whether it is well.
type probeFlags struct {
	TimeoutMS        int      `name:"timeout-ms" env:"HEALTH_CHECK_TIMEOUT_MS" default:"500" min:"1" max:"59999" help:"Time a whole check may take, ms; less than the interval."`
	ConnectTimeoutMS int      `name:"connect-timeout-ms" env:"HEALTH_CHECK_CONNECT_TIMEOUT_MS" min:"1" max:"59999" help:"Time its connect may take, ms; at most the timeout. 200 by default, or the timeout if that is less."`
	Path             string   `env:"HEALTH_CHECK_PATH" default:"/health" help:"Path of HTTP checks."`
	ExpectedCodes    string   `env:"HEALTH_CHECK_EXPECTED_CODES" default:"200" help:"HTTP status codes of a healthy service, such as 200,204 or 200-299."`
	AuthHeader       string   `env:"HEALTH_CHECK_AUTH_HEADER" placeholder:"NAME: VALUE" secret:"" help:"Header sent with checks, such as \"Authorization: Bearer …\"."`
	AuthHeaderFile   string   `env:"HEALTH_CHECK_AUTH_HEADER_FILE" placeholder:"FILE" help:"File that holds it."`
	AuthHosts        []string `env:"HEALTH_CHECK_AUTH_HOSTS" placeholder:"PATTERN" help:"Hosts, or host:port, that get the header; * and ? match within one label of a name."`
	CAFile           string   `name:"ca-file" env:"HEALTH_CHECK_CA_FILE" placeholder:"FILE" help:"Certificates of the CAs that those of https:// and grpcs:// services must lead to, PEM; by default the system's."`
}

func (f *probeFlags) check(p *config.Problems) {
	if f.ConnectTimeoutMS > f.TimeoutMS {
		p.Addf(&f.ConnectTimeoutMS, "connecting is part of the check", "%d is more than the timeout of %d ms", f.ConnectTimeoutMS, f.TimeoutMS)
	}
	if err := health.CheckPath(f.Path); err != nil {
		p.Addf(&f.Path, "", "%v", err)
	}
	if err := new(health.Codes).UnmarshalText([]byte(f.ExpectedCodes)); err != nil {
		p.Addf(&f.ExpectedCodes, "codes are 200 to 599", "%v", err)
	}
	f.checkAuth(p)
	cli.CheckCAs(p, &f.CAFile)
}

func (f *probeFlags) checkAuth(p *config.Problems) {
	cli.ReadSecret(p, &f.AuthHeader, &f.AuthHeaderFile)
	field := &f.AuthHeader
	if f.AuthHeaderFile != "" {
		field = &f.AuthHeaderFile
	}
	switch {
	case *field == "" && len(f.AuthHosts) > 0:
		p.Addf(&f.AuthHosts, "give HEALTH_CHECK_AUTH_HEADER_FILE, or no hosts", "hosts for a header, but no header")
	case f.AuthHeader == "": // none is wanted, or its file could not be read
	case len(f.AuthHosts) == 0:
		p.Addf(&f.AuthHosts, "name them, such as oz-relayer-*: the directory is open to every gateway, a secret is not", "is missing: hosts that the header may be sent to")
	}
	name, value, ok := f.auth()
	ok = ok && httpguts.ValidHeaderFieldName(name) && value != "" && httpguts.ValidHeaderFieldValue(value)
	if f.AuthHeader != "" && !ok {
		p.Addf(field, "write it as Name: value", "is not an HTTP header")
	}
	for _, pattern := range f.AuthHosts {
		if hostlist.CheckPattern(pattern) != nil {
			p.Addf(&f.AuthHosts, "give one such as oz-relayer-*", "%q is not a pattern", pattern)
		}
	}
}

func (f *probeFlags) auth() (name, value string, ok bool) {
	name, value, ok = strings.Cut(f.AuthHeader, ":")
	return strings.TrimSpace(name), strings.TrimSpace(value), ok
}

// config of single checks.
func (f *probeFlags) config() health.Config {
	c := health.Config{
		Interval:       time.Minute, // above every timeout
		Timeout:        milliseconds(f.TimeoutMS),
		ConnectTimeout: milliseconds(cmp.Or(f.ConnectTimeoutMS, min(200, f.TimeoutMS))),
		Path:           f.Path,
	}
	_ = c.Codes.UnmarshalText([]byte(f.ExpectedCodes)) // checked before
	if name, value, ok := f.auth(); ok {
		c.Auth = health.Auth{Header: name, Value: value, Hosts: f.AuthHosts}
	}
	if cas := cli.ReadCAs(f.CAFile); cas != nil {
		c.TLS = &tls.Config{RootCAs: cas, MinVersion: tls.VersionTLS12}
	}
	return c
}

// healthFlags are how the leader checks services.
type healthFlags struct {
	IntervalMS int `name:"interval-ms" env:"HEALTH_CHECK_INTERVAL_MS" default:"10000" min:"1000" max:"60000" help:"Time between two checks of a service, ms."`
	probeFlags
	Rise int `env:"HEALTH_CHECK_RISE" default:"1" min:"1" max:"10" help:"Successes in a row that bring a service back."`
	Fall int `env:"HEALTH_CHECK_FALL" default:"1" min:"1" max:"10" help:"Failures in a row that take it out."`
}

func (h *healthFlags) check(p *config.Problems) {
	if h.TimeoutMS >= h.IntervalMS {
		p.Addf(&h.TimeoutMS, "a check must end before the next begins", "%d is not less than the interval of %d ms", h.TimeoutMS, h.IntervalMS)
	}
	h.probeFlags.check(p)
}

func (h *healthFlags) interval() time.Duration { return milliseconds(h.IntervalMS) }

func (h *healthFlags) config() health.Config {
	c := h.probeFlags.config()
	c.Interval, c.Rise, c.Fall = h.interval(), h.Rise, h.Fall
	return c
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// collectRarely lets garbage grow to four times the live memory before Go collects it, unless GOGC is set. The processes of a
// transaction's way keep about 10 MB and allocate much: by Go's default they collect several times a second.
func collectRarely() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
