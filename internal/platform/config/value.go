package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

const (
	minTag    = "min"
	maxTag    = "max"
	secretTag = "secret"
)

var durationType = reflect.TypeFor[time.Duration]()

// checkValue checks a decoded value against the tags enum, min and max.
func checkValue(v *kong.Value, target reflect.Value) error {
	if v.Enum != "" && !slices.Contains(v.EnumSlice(), fmt.Sprint(target.Interface())) {
		return fmt.Errorf("is not one of %s", strings.Join(v.EnumSlice(), ", "))
	}
	n, ok := number(target)
	if !ok {
		return nil
	}
	switch low, high := bounds(v, target.Type()); {
	case math.IsNaN(n):
		return fmt.Errorf("is not a number")
	case n < low:
		return fmt.Errorf("is below %s", v.Tag.Get(minTag))
	case n > high:
		return fmt.Errorf("is above %s", v.Tag.Get(maxTag))
	}
	return nil
}

// number returns the value that min and max limit.
func number(target reflect.Value) (float64, bool) {
	switch {
	case target.CanInt():
		return float64(target.Int()), true
	case target.CanFloat():
		return target.Float(), true
	}
	return 0, false
}

func bounds(v *kong.Value, t reflect.Type) (low, high float64) {
	bound := func(tag string, otherwise float64) float64 {
		text := v.Tag.Get(tag)
		if text == "" {
			return otherwise
		}
		if t == durationType {
			d, err := time.ParseDuration(text)
			if err != nil {
				panic(fmt.Sprintf("config: tag %s of --%s: %v", tag, v.Name, err))
			}
			return float64(d)
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			panic(fmt.Sprintf("config: tag %s of --%s: %v", tag, v.Name, err))
		}
		return f
	}
	return bound(minTag, math.Inf(-1)), bound(maxTag, math.Inf(1))
}

// rangeOf returns the allowed range, "" if all values are allowed.
func rangeOf(v *kong.Value) string {
	low, high := v.Tag.Get(minTag), v.Tag.Get(maxTag)
	switch {
	case low != "" && high != "":
		return low + " to " + high
	case low != "":
		return "at least " + low
	case high != "":
		return "at most " + high
	}
	return ""
}

// kindOf describes the expected type of a value that cannot be parsed.
func kindOf(v *kong.Value, target reflect.Value, err error) string {
	_, ownText := reflect.TypeAssert[encoding.TextUnmarshaler](target.Addr())
	switch {
	case ownText: // its own error describes the format
	case target.Type() == durationType:
		return `a duration such as "500ms" or "10s"`
	case target.CanInt():
		return "a whole number"
	case target.CanFloat():
		return "a number"
	case target.Kind() == reflect.Bool:
		return "true or false"
	}
	return "valid: " + strings.TrimPrefix(err.Error(), "--"+v.Name+": ")
}

func fixFor(v *kong.Value, target reflect.Value) string {
	if r := rangeOf(v); r != "" {
		return "allowed: " + r
	}
	if v.HasDefault && v.Default != "" && target.Kind() != reflect.Bool {
		return "the default is " + v.Default
	}
	return ""
}

// describe returns the help of a setting: its description, the allowed values, and the variables that set it.
func describe(v *kong.Value) string {
	help := strings.TrimSuffix(v.Help, ".")
	if r := rangeOf(v); r != "" {
		help += ", " + r
	}
	if v.Enum != "" {
		help += ", " + strings.Join(v.EnumSlice(), " or ")
	}
	if v.Flag != nil && len(v.Flag.Envs) > 0 {
		help += " [$" + strings.Join(v.Flag.Envs, ", $") + "]"
	}
	return help
}

// didYouMean suggests the known name that is nearest to a mistyped one.
func didYouMean(name string, known []string) string {
	best, distance := "", (len(name)+4)/3
	for _, k := range known {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// editDistance returns the Levenshtein distance.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
