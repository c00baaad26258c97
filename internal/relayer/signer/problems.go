package signer

import (
	"fmt"
	"strings"
)

// Problem is one problem with the keys. It holds no key material.
type Problem struct {
	// Where is an environment variable, with the element for an array, or a file.
	Where string
	What  string
}

func (p Problem) String() string { return p.Where + ": " + p.What }

// Error holds all problems with the keys, in the order in which they were found.
type Error struct {
	Problems []Problem
	none     bool
}

func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return "load keys: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "load keys: %d problems", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  - " + p.String())
	}
	return b.String()
}

// Is reports that the error is [ErrNoKeys] if no keys are configured at all.
func (e *Error) Is(target error) bool { return target == ErrNoKeys && e.none }

// problems is a list to add problems to.
type problems []Problem

func (p *problems) addf(where, format string, args ...any) {
	*p = append(*p, Problem{Where: where, What: fmt.Sprintf(format, args...)})
}
