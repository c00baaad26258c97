package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

type keysDrainCmd struct {
	Key  string        `arg:"" help:"Address of the key."`
	Wait time.Duration `default:"10m" min:"0s" max:"24h" help:"How long to wait until all is final; 0s only pauses it, and looks."`
	OutputFlags
	poolFlags
}

func (keysDrainCmd) Help() string {
	return `It is over when nothing that the key has can change any more: mined, and as deep as the relayers want it. Then the key may be
taken away from them; while it is theirs, "rollcall keys resume" lets it have new transactions. What was posted to this very
key, and not to the pool, waits for that. Interrupted, or out of time, the key stays paused.`
}

func (c *keysDrainCmd) Check(p *config.Problems) { c.check(p) }

// DrainProgress is how a drain stands, for scripts: a line each time that it changes.
type DrainProgress struct {
	Key     string `json:"key"`
	Pending int    `json:"pending"` // not mined
	Mined   int    `json:"mined"`   // not deep enough
	Waiting int    `json:"waiting"` // for this key alone
	Drained bool   `json:"drained"`
}

func (d DrainProgress) print(w io.Writer, o OutputFlags) error {
	if o.Output == "json" {
		return printJSONLine(w, d)
	}
	what := fmt.Sprintf("%d pending, %d mined and not final", d.Pending, d.Mined)
	if d.Drained {
		what = "drained, and paused"
	}
	if d.Waiting > 0 {
		what += fmt.Sprintf("; %d posted to this very key wait for it", d.Waiting)
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", d.Key, what)
	return err
}

func (c *keysDrainCmd) Run(ctx context.Context, con *Console) error {
	a, limited, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	keys, err := (&keyArgs{Key: []string{c.Key}}).keys(limited, a)
	if err != nil {
		return err
	}
	key := keys[0].Address
	state := DrainProgress{Key: lower(key)}
	tell := func(n store.Load) {
		state.Pending, state.Mined, state.Waiting = n.Pending, n.Mined, n.Waiting
		if n.Pending+n.Mined > 0 {
			_ = state.print(con.Stdout, c.OutputFlags) // the last line's error counts
		}
	}
	// However short the wait: the key is paused, or it is said that it is not.
	left, over, err := a.Drain(limited, key)
	if err != nil {
		return uncertain(err, "rollcall keys list")
	}
	tell(left)
	if !over {
		waiting, cancel := context.WithTimeout(ctx, c.Wait)
		defer cancel()
		err = a.AwaitDrained(waiting, key, left, tell)
	}
	if _, paused := errors.AsType[*admin.NotDrainedError](err); paused {
		return WithFix(err, `Drain it again to go on waiting, longer with --wait, or let it work again with "rollcall keys resume".`)
	}
	if err != nil {
		return uncertain(err, "rollcall keys list")
	}
	state.Drained = true
	return state.print(con.Stdout, c.OutputFlags)
}
