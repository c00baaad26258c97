package keymonitor

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	c := New(Config{}).cfg
	disabled := func(reason string) *relayer.Key {
		return &relayer.Key{DisabledReason: reason, MinBalance: big.NewInt(100), Balance: big.NewInt(1000)}
	}
	with := func(k *relayer.Key, change func(*relayer.Key)) *relayer.Key { change(k); return k }
	on := func(balance, least int64) *relayer.Key {
		return &relayer.Key{Enabled: true, Balance: big.NewInt(balance), MinBalance: big.NewInt(least)}
	}
	low := func(balance, least int64) *relayer.Key {
		return &relayer.Key{DisabledReason: lowBalance, Balance: big.NewInt(balance), MinBalance: big.NewInt(least)}
	}
	out, stays, again := &store.KeyStateChange{Reason: lowBalance}, (*store.KeyStateChange)(nil), &store.KeyStateChange{Enabled: true}
	errs := repeatedErrors + ": insufficient funds"
	for name, test := range map[string]struct {
		key     *relayer.Key
		refused bool
		want    *store.KeyStateChange
	}{
		"enough":                         {on(100, 100), false, stays},
		"a wei too little":               {on(99, 100), false, out},
		"nothing is asked for":           {on(0, 0), false, stays},
		"not known yet":                  {&relayer.Key{Enabled: true, MinBalance: big.NewInt(5)}, false, stays},
		"back at the limit is too early": {low(100, 100), false, out},
		"below a fifth more":             {low(119, 100), false, out},
		"a fifth more":                   {low(120, 100), false, again},
		"a fifth is rounded up":          {low(121, 101), false, out},
		"and above that":                 {low(122, 101), false, again},
		"the limit was taken away":       {low(0, 0), false, again},
		"out, and not known":             {&relayer.Key{DisabledReason: lowBalance, MinBalance: big.NewInt(5)}, false, out},
		"errors: not yet":                {with(disabled(errs), func(k *relayer.Key) { k.DisabledUntil = now.Add(time.Second) }), false, stays},
		"errors: over":                   {with(disabled(errs), func(k *relayer.Key) { k.DisabledUntil = now }), false, again},
		"errors: still refused":          {disabled(errs), true, &store.KeyStateChange{Reason: errs, Until: now.Add(2 * time.Minute)}},
		"errors: refused again and again": {
			with(disabled(errs), func(k *relayer.Key) { k.Checks = 3 }), true, &store.KeyStateChange{Reason: errs, Until: now.Add(16 * time.Minute)},
		},
		"errors: refused for ever": {
			with(disabled(errs), func(k *relayer.Key) { k.Checks = 1_000_000 }), true, &store.KeyStateChange{Reason: errs, Until: now.Add(maxCooldown)},
		},
		"errors: over, and poor":      {with(disabled(errs), func(k *relayer.Key) { k.Balance = big.NewInt(99) }), false, out},
		"another component's reason":  {disabled("a reason of its own"), false, stays},
		"an operator's pause is none": {with(on(1000, 100), func(k *relayer.Key) { k.Paused = true }), false, stays},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, c.evaluateBalance(test.key, test.refused, now))
		})
	}
}
