package health

import (
	"context"
	"errors"
	"time"
)

// Check checks a URL once, by the rules of a Checker but for those against a late one, and returns why it is not
// healthy, nil when it is. It is for who asks now and then; it keeps nothing between two calls.
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
