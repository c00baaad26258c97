package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// bucket is the number of values up to a limit.
type bucket struct{ atMost, count float64 }

// histogram is a Prometheus histogram, with its buckets in order.
type histogram []bucket

// readHistogram returns a histogram without labels from metrics in Prometheus' text format.
func readHistogram(metrics []byte, name string) (h histogram, err error) {
	for lines := bufio.NewScanner(bytes.NewReader(metrics)); lines.Scan(); {
		rest, is := strings.CutPrefix(lines.Text(), name+`_bucket{le="`)
		if !is {
			continue
		}
		atMost, count, _ := strings.Cut(rest, `"} `)
		var b bucket
		if b.atMost, err = strconv.ParseFloat(atMost, 64); err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		if b.count, err = strconv.ParseFloat(count, 64); err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		h = append(h, b)
	}
	if len(h) == 0 {
		return nil, fmt.Errorf("metric %s: there is none", name)
	}
	slices.SortFunc(h, func(a, b bucket) int { return cmp.Compare(a.atMost, b.atMost) })
	return h, nil
}

// since returns the values after an earlier reading of the same histogram.
func (h histogram) since(earlier histogram) histogram {
	h = slices.Clone(h)
	for i := range min(len(h), len(earlier)) {
		h[i].count -= earlier[i].count
	}
	return h
}

// quantile interpolates linearly in the buckets, like Prometheus' histogram_quantile; NaN without values.
func (h histogram) quantile(q float64) float64 {
	total := h[len(h)-1].count
	if total == 0 {
		return math.NaN()
	}
	var below bucket
	for _, b := range h {
		if b.count >= q*total {
			if math.IsInf(b.atMost, 1) {
				return below.atMost
			}
			return below.atMost + (b.atMost-below.atMost)*(q*total-below.count)/(b.count-below.count)
		}
		below = b
	}
	return below.atMost
}
