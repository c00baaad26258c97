package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// databaseFlags are how an operator's command reaches the relayers' store. No relayer has to run for it.
type databaseFlags struct {
	DatabaseURL string        `env:"DATABASE_URL,RELAYER_DATABASE_URL" placeholder:"URL" secret:"" help:"Postgres: postgres://user:password@host:port/database. By default that of the cluster that \"rollcall-dev\" runs in build/dev."`
	URLFile     string        `name:"database-url-file" env:"DATABASE_URL_FILE,RELAYER_DATABASE_URL_FILE" placeholder:"FILE" help:"File that holds the URL."`
	Timeout     time.Duration `env:"ROLLCALL_TIMEOUT" default:"10s" min:"100ms" max:"10m" help:"How long to wait for an answer."`
}

// CheckFlags fills in what "rollcall-dev" runs, where no database is named, and returns what that is then.
func (d *databaseFlags) CheckFlags(p *config.Problems) (running *devinfo.Info) {
	given := d.DatabaseURL != "" || d.URLFile != ""
	ReadSecret(p, &d.DatabaseURL, &d.URLFile)
	d.DatabaseURL = WithoutDriver(d.DatabaseURL)
	if given {
		CheckDatabaseURL(p, &d.DatabaseURL, &d.URLFile)
		return nil
	}
	if running = devinfo.Running(devinfo.DefaultData); running != nil {
		d.DatabaseURL = running.DatabaseURL
	}
	if d.DatabaseURL == "" {
		p.Addf(&d.DatabaseURL, "give postgres://user:password@host:port/database, or start \"rollcall-dev\"", "is missing")
	}
	return running
}

// WithoutDriver returns a URL without the driver that some programs want in its scheme, as in postgresql+asyncpg://.
func WithoutDriver(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url
	}
	scheme, _, _ = strings.Cut(scheme, "+")
	return scheme + "://" + rest
}

// Open connects. It tries once: a person waits.
func (d *databaseFlags) Open(ctx context.Context) (*pgxpool.Pool, error) {
	db, err := postgres.Open(ctx, postgres.Config{URL: d.DatabaseURL, ApplicationName: "rollcall operator", MaxConns: 4, Wait: -1})
	if err != nil {
		return nil, databaseError(err)
	}
	return db, nil
}

func databaseError(err error) error {
	if errors.Is(err, postgres.ErrAsyncCommit) {
		return err // it says itself what to do
	}
	return WithFix(err, "Check DATABASE_URL or DATABASE_URL_FILE, and that PostgreSQL runs and lets this host in.")
}

// CheckDatabaseURL reports a URL that cannot be parsed.
func CheckDatabaseURL(p *config.Problems, url, file *string) {
	if *url == "" {
		return
	}
	if err := postgres.CheckURL(*url); err != nil {
		p.Addf(From(url, file), "", "%v", err)
	}
}

// schemaError adds the remedy for a schema that is too old.
func schemaError(err error) error {
	if _, ok := errors.AsType[*postgres.OlderError](err); ok {
		return WithFix(err, `Bring it up to date with "rollcall migrate".`)
	}
	return err
}

// poolFlags are which pool of keys it is about.
type poolFlags struct {
	databaseFlags
	PoolID  string `env:"RELAYER_POOL_ID" placeholder:"NAME" help:"Name of the pool of keys: pool by default, or that of \"rollcall-dev\"."`
	ChainID uint64 `name:"chain-id" env:"RELAYER_CHAIN_ID" placeholder:"ID" help:"Chain that the keys are used on."`
}

// fill fills in the pool of what "rollcall-dev" runs, or the default.
func (f *poolFlags) fill(p *config.Problems) *devinfo.Info {
	running := f.CheckFlags(p)
	if running != nil {
		f.PoolID, f.ChainID = cmp.Or(f.PoolID, running.PoolID), cmp.Or(f.ChainID, running.Chain.ChainID)
	}
	f.PoolID = cmp.Or(f.PoolID, "pool")
	return running
}

func (f *poolFlags) check(p *config.Problems) *devinfo.Info {
	running := f.fill(p)
	if f.ChainID == 0 {
		p.Addf(&f.ChainID, "1 is Ethereum, 1337 the dev chain", "is missing")
	}
	return running
}

// admin opens the pool; the context ends with the timeout, and end releases both.
func (f *poolFlags) admin(ctx context.Context) (_ *admin.Admin, _ context.Context, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	db, err := f.Open(ctx)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	end = func() { db.Close(); cancel() }
	a, err := admin.Open(ctx, db, f.ChainID, f.PoolID)
	if err == nil {
		return a, ctx, end, nil
	}
	end()
	return nil, nil, nil, poolError(err)
}

// poolError adds the remedy to the error of a pool that cannot be opened.
func poolError(err error) error {
	if _, ok := errors.AsType[*store.UnknownPoolError](err); ok {
		return WithFix(err, "Check --pool-id (RELAYER_POOL_ID) and --chain-id (RELAYER_CHAIN_ID), or start its relayers.")
	}
	return schemaError(err)
}

// nodeFlags are the chain's nodes.
type nodeFlags struct {
	RPCURLs []string `name:"rpc-urls" env:"RELAYER_RPC_URLS,RELAYER_RPC_URL" placeholder:"URL" secret:"" help:"Nodes of the chain, the preferred one first; by default that of \"rollcall-dev\", where its database is used."`
	RPCFile string   `name:"rpc-urls-file" env:"RELAYER_RPC_URLS_FILE" placeholder:"FILE" help:"File that holds them, between commas."`
	MaxRPS  []int    `name:"rpc-max-rps" env:"RELAYER_RPC_MAX_RPS,RPC_MAX_RPS" placeholder:"N" help:"Calls that a node is sent in a second, each item of a batch counted: a number for each node, in their order, or one for all; 0, the default, for any."`
}

func (n *nodeFlags) check(p *config.Problems, running *devinfo.Info, chainID uint64) {
	ReadSecrets(p, &n.RPCURLs, &n.RPCFile)
	if len(n.RPCURLs) == 0 && running != nil && running.Chain.RPCURL != "" {
		n.RPCURLs = []string{running.Chain.RPCURL}
	}
	if len(n.RPCURLs) == 0 || chainID == 0 || !CheckMaxRPS(p, &n.MaxRPS, len(n.RPCURLs)) {
		return
	}
	if client, err := n.client(chainID); err != nil {
		p.Addf(&n.RPCURLs, "", "%v", err)
	} else {
		client.Close()
	}
}

func (n *nodeFlags) client(chainID uint64) (*evm.Client, error) {
	return evm.Open(evm.Config{ChainID: chainID, Endpoints: n.RPCURLs, MaxRPS: n.MaxRPS})
}

// ActionResult is what became of one thing that a command was to change, for scripts.
type ActionResult struct {
	Subject string        `json:"subject"`
	Outcome admin.Outcome `json:"outcome"` // done, not done, unknown
	Detail  string        `json:"detail"`
	Count   int           `json:"count,omitempty"` // of what was changed, if the subject stands for several things
	err     error
}

func resultOf(subject string, detail string, err error) ActionResult {
	d := ActionResult{Subject: subject, Outcome: admin.OutcomeOf(err), Detail: detail, err: err}
	if err != nil {
		d.Detail = err.Error()
	}
	return d
}

// failure returns the error of a command that has done several things: nil if all of them are done. look is the
// command that shows the result of those whose outcome is unknown.
func failure(results []ActionResult, look string) error {
	var not, unknown []string
	var first error
	for _, d := range results {
		switch d.Outcome {
		case admin.Done:
		case admin.NotDone:
			not = append(not, d.Subject+": "+d.Detail)
			first = cmp.Or(first, d.err)
		case admin.Unknown:
			unknown = append(unknown, d.Subject+": "+d.Detail)
		}
	}
	switch {
	case len(unknown) > 0:
		text := strings.Join(unknown, "; ")
		if len(not) > 0 {
			text += "; not done: " + strings.Join(not, "; ")
		}
		return WithFix(&gateway.UnknownOutcomeError{Cause: text}, "Look before you repeat it: %q.", look)
	case len(not) > 0:
		return &partialError{text: strings.Join(not, "; "), err: first}
	}
	return nil
}

// partialError keeps the first of several errors, for its remedy.
type partialError struct {
	text string
	err  error
}

func (e *partialError) Error() string { return e.text }
func (e *partialError) Unwrap() error { return e.err }

// uncertain returns the error of an operator's failed change: not done, or outcome unknown.
func uncertain(err error, look string) error {
	if admin.OutcomeOf(err) != admin.Unknown {
		return err
	}
	return WithFix(&gateway.UnknownOutcomeError{Cause: err.Error(), Err: err}, "Look before you repeat it: %q.", look)
}

// age is how long ago something was, in its largest unit.
func age(since time.Time) string {
	switch d := max(0, time.Since(since)); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// unchanged is the result of an error that preceded any change.
func unchanged(subject string, err error) ActionResult {
	return ActionResult{Subject: subject, Outcome: admin.NotDone, Detail: err.Error(), err: err}
}
