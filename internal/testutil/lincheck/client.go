package lincheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrUnknown, ErrConflict and ErrNotDone are errors that a Directory returns instead of a result.
var (
	ErrUnknown  = errors.New("outcome unknown")
	ErrConflict = errors.New("owned by another")
	ErrNotDone  = errors.New("not done")
)

// Directory is the system under test, for one client. Any error but these three, including a rejected seq, fails the
// test. A write that is repeated with the same seq gets the answer of the first.
type Directory interface {
	Write(ctx context.Context, c Call) (Answer, error)
	List(ctx context.Context, ids []string) (map[string]Entry, error)
}

// idsPerShard is small, so that clients compete.
const idsPerShard = 3

// Client makes random calls and records them.
type Client struct {
	Number, Shard int
	Owner         string
	Directory     Directory
	History       *History
	Rand          *rand.Rand
	// Timeout of a call. Default 2 s.
	Timeout time.Duration

	seq  uint64
	last map[string]string // the last registered values, to register them again
}

// Run makes calls until ctx ends or the number of calls is reached.
func (c *Client) Run(ctx context.Context, calls int) error {
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Second
	}
	for i := 0; i < calls && ctx.Err() == nil; {
		done, err := c.call(ctx)
		if err != nil {
			return fmt.Errorf("client %d: %w", c.Number, err)
		}
		if done {
			i++
		}
	}
	return nil
}

// call makes one call; done is false if it certainly had no effect and was not recorded.
func (c *Client) call(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	call := c.next()
	end := c.History.Begin(c.Number, call)
	if call.Kind == List {
		ids := make([]string, 0, len(call.Values))
		for id := range call.Values {
			ids = append(ids, id)
		}
		entries, err := c.Directory.List(ctx, ids)
		if err != nil {
			return false, nil // reads have no effect
		}
		end(Answer{Entries: entries})
		return true, nil
	}
	unknown := false
	for {
		a, err := c.Directory.Write(ctx, call)
		switch {
		case err == nil:
			end(a)
			return true, nil
		case errors.Is(err, ErrConflict):
			end(Answer{Conflict: true})
			return true, nil
		case errors.Is(err, ErrUnknown):
			unknown = true
			if c.Rand.IntN(2) == 0 || ctx.Err() != nil {
				end(Answer{Unknown: true}) // outcome left open
				return true, nil
			}
		case errors.Is(err, ErrNotDone):
			if ctx.Err() == nil {
				continue
			}
			if unknown {
				end(Answer{Unknown: true})
			}
			return unknown, nil
		default:
			return false, err
		}
	}
}

func (c *Client) next() Call {
	call := Call{Shard: c.Shard, Owner: c.Owner, Values: make(map[string]string)}
	some := func(atLeast int) {
		for i, n := range c.Rand.Perm(idsPerShard) {
			if i < atLeast || c.Rand.IntN(2) == 0 {
				call.Values[fmt.Sprintf("s%d-%d", c.Shard, n)] = ""
			}
		}
	}
	switch n := c.Rand.IntN(100); {
	case n < 35:
		call.Kind = List
		some(idsPerShard)
		return call
	case n < 55:
		call.Kind = Deregister
		some(1)
	case n < 70 && len(c.last) > 0:
		call.Kind = Register
		call.Values = c.last
	case n < 85:
		call.Kind = Replace
		some(0)
	default:
		call.Kind = Register
		some(1)
	}
	c.seq++
	call.Seq = c.seq
	if call.Kind != Deregister {
		for id, v := range call.Values {
			if v == "" {
				call.Values[id] = fmt.Sprintf("http://%s.c%d-%d:1", id, c.Number, c.seq)
			}
		}
		if len(call.Values) > 0 {
			c.last = call.Values
		}
	}
	return call
}
