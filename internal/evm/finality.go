package evm

import (
	"context"
	"errors"
	"fmt"
)

// Finality selects the newest block of an endpoint that counts as final.
type Finality struct {
	Tag   string // "finalized" or "safe"; empty: Depth decides
	Depth uint64 // below the newest block; the first block of a chain is always final
}

func (f Finality) String() string {
	if f.Tag != "" {
		return f.Tag
	}
	return fmt.Sprintf("depth %d", f.Depth)
}

// FinalOf returns the header of the newest final block of one endpoint, named as View.Endpoint and Status do. found is false if the
// endpoint has none: it does not support the tag, or tags no block. FinalOf asks no other endpoint, and does not check that the block
// leads to the newest one: the caller compares.
func (c *Client) FinalOf(ctx context.Context, endpoint string, f Finality) (h Header, found bool, err error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return Header{}, false, err
	}
	if limit := ep.rateLimit("eth_getBlockByNumber"); limit != nil {
		return Header{}, false, fmt.Errorf("read the final block (%s): %w", f, limit)
	}
	if f.Tag != "" {
		h, err = ep.tagged(ctx, f.Tag, noTag)
	} else {
		h, err = c.newest(ctx, ep)
		if err == nil && f.Depth > 0 {
			h, err = ep.headerAt(ctx, h.Number-min(h.Number, f.Depth))
		}
	}
	if errors.Is(err, ErrMissing) {
		return Header{}, false, nil
	}
	if err != nil {
		return Header{}, false, fmt.Errorf("read the final block (%s): %w", f, err)
	}
	return h, true, nil
}

// tagged returns the header of a tagged block. ErrMissing means that there is none, or that the endpoint does not support the tag.
// answered reports which errors are answers, as in call.
func (ep *endpoint) tagged(ctx context.Context, tag string, answered func(*RPCError) bool) (Header, error) {
	read := blockByTag(tag)
	read.answers, read.decode = answered, checkHeader
	answers, err := ep.askPatiently(ctx, []call{read})
	if err != nil {
		return Header{}, err
	}
	h, err := headerOf(answers[0])
	if e, ok := errors.AsType[*RPCError](err); ok && noTag(e) {
		return Header{}, fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return h, err
}

// HeaderAt returns the header of the block of a number at one endpoint. ErrMissing means that it has none.
func (c *Client) HeaderAt(ctx context.Context, endpoint string, number uint64) (Header, error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return Header{}, err
	}
	h, err := ep.headerAt(ctx, number)
	if err != nil {
		return Header{}, fmt.Errorf("read block %d: %w", number, err)
	}
	return h, nil
}

func (ep *endpoint) headerAt(ctx context.Context, number uint64) (Header, error) {
	read := blockByNumber(number)
	if limit := ep.rateLimit(read.method); limit != nil {
		return Header{}, limit
	}
	read.decode = func(result []byte) error {
		if isNull(result) {
			return nil
		}
		h, err := parseHeader(result)
		if err == nil && h.Number != number {
			err = fmt.Errorf("it is block %d", h.Number)
		}
		return err
	}
	answers, err := ep.askPatiently(ctx, []call{read})
	if err != nil {
		return Header{}, err
	}
	return sealedHeaderOf(answers[0])
}
