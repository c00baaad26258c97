package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// row is one line of the result. Fields that do not apply are null.
type row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // the median if there were several rounds
	Unit  string  `json:"unit"`
	// Min and Max are over the rounds, and Rounds is their number; null and 0 if a row was measured once.
	Min       *float64 `json:"min"`
	Max       *float64 `json:"max"`
	Rounds    int      `json:"rounds"`
	Peer      *string  `json:"peer"`
	PeerValue *float64 `json:"peer_value"`
	Ratio     *float64 `json:"ratio"` // value / peer_value
	Target    *string  `json:"target"`
	Met       *bool    `json:"met"`
}

// expected has the names of all rows, a line each, with N for each number.
//
//go:embed rows.txt
var expected string

var numbers = regexp.MustCompile(`\b[0-9][0-9,hms]*`)

// absent returns the expected rows that a whole run has not measured.
func absent(rows []row) (names []string) {
	measured := make(map[string]bool)
	for _, r := range rows {
		measured[numbers.ReplaceAllString(r.Name, "N")] = true
	}
	for name := range strings.Lines(expected) {
		if name = strings.TrimSpace(name); !measured[name] {
			names = append(names, name)
		}
	}
	return names
}

// add appends a row without peer or target. It records the row as missing, and appends nothing, if the value is not a
// number.
func (s *suite) add(name string, value float64, unit string) *row {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		s.missing = append(s.missing, name)
		return &row{}
	}
	s.rows = append(s.rows, row{Name: name, Value: value, Unit: unit})
	return &s.rows[len(s.rows)-1]
}

// report appends a row with the median, the minimum and the maximum of the samples of that name.
func (s *suite) report(name, unit string) *row {
	samples := s.samples[name]
	r := s.add(name, median(samples), unit)
	if len(samples) > 1 {
		r.Min, r.Max, r.Rounds = new(slices.Min(samples)), new(slices.Max(samples)), len(samples)
	}
	return r
}

// versus appends rows of a peer's samples and of ours, and returns ours.
func (s *suite) versus(peer, ours, unit string) *row {
	s.report(peer, unit)
	return s.report(ours, unit).beside(peer, median(s.samples[peer]))
}

// beside sets a peer. Nothing is compared with a peer without a value.
func (r *row) beside(peer string, value float64) *row {
	if ratio := r.Value / value; !math.IsNaN(ratio) && !math.IsInf(ratio, 0) {
		r.Peer, r.PeerValue, r.Ratio = &peer, &value, &ratio
	}
	return r
}

// atLeast and atMost set a target for the ratio to the peer; valueAtLeast and valueAtMost set one for the value.
func (r *row) atLeast(ratio float64) {
	if r.Ratio != nil {
		r.setTarget(fmt.Sprintf(">= %g x peer", ratio), *r.Ratio >= ratio)
	}
}

func (r *row) atMost(ratio float64) {
	if r.Ratio != nil {
		r.setTarget(fmt.Sprintf("<= %g x peer", ratio), *r.Ratio <= ratio)
	}
}

func (r *row) valueAtLeast(limit float64) {
	r.setTarget(fmt.Sprintf(">= %g %s", limit, r.Unit), r.Value >= limit)
}

func (r *row) valueAtMost(limit float64) {
	r.setTarget(fmt.Sprintf("<= %g %s", limit, r.Unit), r.Value <= limit)
}

// notAfter sets a target for the value: the peer's plus more.
func (r *row) notAfter(more float64) {
	if r.PeerValue != nil {
		r.setTarget(fmt.Sprintf("<= peer + %g %s", more, r.Unit), r.Value <= *r.PeerValue+more)
	}
}

func (r *row) setTarget(target string, met bool) { r.Target, r.Met = &target, &met }

func writeJSON(path string, rows []row) error {
	data, err := json.MarshalIndent(map[string][]row{"rows": rows}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func printTable(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tmedian\t\tmin\tmax\tpeer\tpeer's\tratio\ttarget\tmet")
	for _, r := range rows {
		cells := []string{r.Name, number(r.Value), r.Unit, "", "", "", "", "", "", ""}
		if r.Min != nil {
			cells[3], cells[4] = number(*r.Min), number(*r.Max)
		}
		if r.Peer != nil {
			cells[5], cells[6] = *r.Peer, number(*r.PeerValue)
		}
		if r.Ratio != nil {
			cells[7] = strconv.FormatFloat(*r.Ratio, 'f', 2, 64)
		}
		if r.Target != nil {
			cells[8], cells[9] = *r.Target, map[bool]string{true: "yes", false: "NO"}[*r.Met]
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	t.Flush()
}

// number formats three significant digits, and whole numbers from a thousand on.
func number(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile returns a quantile of unsorted values; NaN if there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	if q == 0.5 && len(sorted)%2 == 0 {
		return (sorted[len(sorted)/2-1] + sorted[len(sorted)/2]) / 2
	}
	return sorted[min(int(math.Ceil(q*float64(len(sorted))))-1, len(sorted)-1)]
}

// quantileSince returns a quantile of the values that a histogram of Prometheus received between two readings. It
// interpolates linearly in the buckets; NaN without values.
func quantileSince(before, after map[float64]float64, q float64) float64 {
	want := q * (after[math.Inf(1)] - before[math.Inf(1)])
	if want == 0 {
		return math.NaN()
	}
	low, below := 0.0, 0.0
	for _, limit := range slices.Sorted(maps.Keys(after)) {
		count := after[limit] - before[limit]
		if count >= want {
			if math.IsInf(limit, 1) {
				return low
			}
			return low + (limit-low)*(want-below)/(count-below)
		}
		low, below = limit, count
	}
	return low
}
