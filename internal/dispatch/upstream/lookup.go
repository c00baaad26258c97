package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// ListedFor is for how long a relayer has a final transaction at least. OpenZeppelin's deletes it after four hours by default.
const ListedFor = time.Hour

const (
	// pageSize is the number of transactions on a page. A page with larger transactions exceeds the bound of a response, and
	// is read again in pages of smallPage, which never do: the nodes' bound of data is 128 KiB.
	pageSize, smallPage = 100, 10
	// maxPages bounds the pages that one lookup reads.
	maxPages = 100
	// sortedItems is how many transactions in order are taken as a list in that order.
	sortedItems = 10
)

// Match describes the transactions that a lookup looks for.
type Match struct {
	To    *common.Address // nil for a contract creation
	Data  []byte
	Value *big.Int // nil is 0
	// Since is the earliest time of acceptance, by this process's clock. Lookup converts it to the relayer's, which the Date of the
	// answers shows. The caller leaves a margin for relayers without a Date, whose host and database differ, or whose clock is set.
	Since time.Time
}

// matches reports whether a transaction matches. unclear reports that it may: its value or data is missing or unreadable.
func (m *Match) matches(t *Transaction) (match, unclear bool) {
	value := m.Value
	if value == nil {
		value = new(big.Int)
	}
	switch {
	case !t.CreatedAt.IsZero() && t.CreatedAt.Before(m.Since):
		return false, false
	case (m.To == nil) != (t.To == nil), m.To != nil && *m.To != *t.To:
		return false, false
	case m.To != nil && !t.CallComplete:
		return false, true
	default:
		return bytes.Equal(m.Data, t.Data) && (t.Value == nil || t.Value.Cmp(value) == 0), false
	}
}

// Page is a page of a relayer's transactions, in the relayer's order.
type Page struct {
	Transactions []Transaction
	Total        int // of the list
	PerPage      int // as the relayer applied it
}

// List returns a page of transactions; the first one is 1.
func (c *Client) List(ctx context.Context, ref Ref, page, perPage int) (Page, error) {
	query := url.Values{"page": {strconv.Itoa(page)}, "per_page": {strconv.Itoa(perPage)}}
	var list []json.RawMessage
	_, e, err := c.get(ctx, transactionsPath(ref.ID), query, ref.Scope, &list)
	if err != nil {
		return Page{}, fmt.Errorf("list transactions of relayer %s: %w", ref.ID, noRelayer(err))
	}
	out := Page{PerPage: perPage}
	for _, raw := range list {
		tx, err := c.decodeTransaction(raw)
		if err != nil {
			return Page{}, fmt.Errorf("list transactions of relayer %s: %w", ref.ID, &Error{Code: http.StatusOK, Reason: err.Error()})
		}
		out.Transactions = append(out.Transactions, tx)
	}
	out.Total = len(list)
	if e.Pagination != nil {
		out.Total = max(out.Total, e.Pagination.TotalItems)
		if e.Pagination.PerPage > 0 {
			out.PerPage = min(perPage, e.Pagination.PerPage)
		}
	}
	return out, nil
}

// Lookup returns all transactions that match, in no particular order. With an error it proves nothing.
//
// The order of the list differs between versions of OpenZeppelin's relayer. Lookup recognizes the order, and reads from the
// newest end to Match.Since. Transactions that are added or deleted meanwhile move others to pages that are read later, or
// repeat them, but hide none. In an unknown order it reads everything, and begins again if the list became shorter.
func (c *Client) Lookup(ctx context.Context, ref Ref, m Match) ([]Transaction, error) {
	if ref.Scope == "" && ref.Network != "" { // as for a submission: the list of another network's relayer proves nothing
		c = c.pinned()
		defer c.http.CloseIdleConnections()
		if _, err := c.Confirm(ctx, Info{RelayerID: ref.ID, Network: ref.Network}); err != nil {
			return nil, err
		}
	}
	found, err := c.lookup(ctx, ref, &m, pageSize)
	if errors.Is(err, ErrTooLarge) {
		found, err = c.lookup(ctx, ref, &m, smallPage)
	}
	return found, err
}

// lookup is one Lookup with pages of a size.
func (c *Client) lookup(ctx context.Context, ref Ref, m *Match, size int) ([]Transaction, error) {
	match := *m
	s := &search{match: &match, found: map[string]Transaction{}}
	for range 3 {
		first, err := c.List(ctx, ref, 1, size)
		if err != nil {
			return nil, err
		}
		match.Since = c.clock.earliest(m.Since) // the answer has measured the clock
		older := s.add(first)
		last := pages(first)
		switch order := orderOf(first.Transactions); {
		case last == 1, order == newestFirst && older:
			return s.result()
		case order == oldestFirst:
			err = c.readPages(ctx, ref, first, last, 2, s)
		default:
			s.all = order == unknownOrder
			err = c.readPages(ctx, ref, first, 2, last, s)
		}
		if err == nil {
			return s.result()
		}
		if !errors.Is(err, errShrunk) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("list transactions of relayer %s: %w: the list becomes shorter all the time", ref.ID, ErrTooMany)
}

// errShrunk reports that a list of unknown order became shorter while it was read, so that a transaction may have moved to a
// page that was read before.
var errShrunk = errors.New("the list became shorter")

// search collects the matches of a lookup.
type search struct {
	match *Match
	found map[string]Transaction
	// unclear is a transaction that may match: with it, the others prove nothing.
	unclear string
	all     bool // no page ends the search
}

// add adds a page's matches, and reports whether the whole page is older than the search goes back.
func (s *search) add(p Page) (older bool) {
	older = len(p.Transactions) > 0
	for _, tx := range p.Transactions {
		match, unclear := s.match.matches(&tx)
		if match {
			s.found[tx.ID] = tx
		}
		if unclear {
			s.unclear = tx.ID
		}
		older = older && !tx.CreatedAt.IsZero() && tx.CreatedAt.Before(s.match.Since)
	}
	return older
}

func (s *search) result() ([]Transaction, error) {
	if s.unclear != "" {
		return nil, fmt.Errorf("transaction %s: %w", s.unclear, ErrUnclear)
	}
	out := make([]Transaction, 0, len(s.found))
	for _, tx := range s.found {
		out = append(out, tx)
	}
	slices.SortFunc(out, func(a, b Transaction) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out, nil
}

// readPages reads the pages after the first, up or down.
func (c *Client) readPages(ctx context.Context, ref Ref, first Page, from, to int, s *search) error {
	step := 1
	if to < from {
		step = -1
	}
	total := first.Total
	for n, page := 1, from; ; n, page = n+1, page+step {
		if n >= maxPages {
			return fmt.Errorf("list transactions of relayer %s: %w: read %d pages", ref.ID, ErrTooMany, n)
		}
		p, err := c.List(ctx, ref, page, first.PerPage)
		if err != nil {
			return err
		}
		older := s.add(p)
		switch {
		case s.all && p.Total < total:
			return errShrunk
		case older && !s.all, page == to && step < 0, step > 0 && page >= pages(p):
			return nil
		}
		total = p.Total
	}
}

// pages returns the number of pages of a list.
func pages(p Page) int { return max(1, (p.Total+p.PerPage-1)/p.PerPage) }

// order is the order of a list.
type order uint8

const (
	unknownOrder order = iota
	newestFirst
	oldestFirst
)

// orderOf returns the order of transactions by their time; unknown for few ones, and if all have the same time.
func orderOf(list []Transaction) order {
	if len(list) < sortedItems {
		return unknownOrder
	}
	byTime := func(a, b Transaction) int { return a.CreatedAt.Compare(b.CreatedAt) }
	reverse := func(a, b Transaction) int { return byTime(b, a) }
	first, last := list[0], list[len(list)-1]
	switch {
	case first.CreatedAt.Equal(last.CreatedAt), slices.ContainsFunc(list, func(t Transaction) bool { return t.CreatedAt.IsZero() }):
		return unknownOrder
	case slices.IsSortedFunc(list, reverse):
		return newestFirst
	case slices.IsSortedFunc(list, byTime):
		return oldestFirst
	default:
		return unknownOrder
	}
}
