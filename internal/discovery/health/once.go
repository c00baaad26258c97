package health

import (
	"context"
	"errors"
	"time"
)

// Check checks a URL once, by the rules of a Checker except those for a late one. It returns why the service is not
// healthy, or nil. It is for occasional calls and keeps no state between them.
func Check(ctx context.Context, cfg Config, rawURL string) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	p := newProber(cfg)
	defer p.close()
	probe := p.probe(Target{URL: rawURL})
	defer probe.close()
	if err := probe.check(ctx, time.Now().Add(cfg.Timeout)); err != nil {
		return errors.New(reason(err))
	}
	return nil
}
