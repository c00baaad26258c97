package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Problem is one problem with the settings.
type Problem struct {
	// Where is the source of the setting: a flag, an environment variable, or a file's line and key.
	Where string
	What  string
	// Fix is how to correct it, if What does not say so.
	Fix string
}

func (p Problem) String() string {
	if p.Fix == "" {
		return p.Where + ": " + p.What
	}
	return p.Where + ": " + p.What + "; " + p.Fix
}

// Error holds all problems with a command's settings.
type Error struct {
	// Command is the command as the user typed it, such as "rollcall coordinator".
	Command  string
	Problems []Problem
}

func (e *Error) Error() string {
	var b strings.Builder
	if len(e.Problems) == 1 {
		fmt.Fprintf(&b, "%s: %s\n", e.Command, e.Problems[0])
	} else {
		fmt.Fprintf(&b, "%s: %d problems\n", e.Command, len(e.Problems))
		for _, p := range e.Problems {
			fmt.Fprintf(&b, "  - %s\n", p)
		}
	}
	fmt.Fprintf(&b, "Run %q for its flags.", e.Command+" --help")
	return b.String()
}

type sourceKind int

const (
	fromFlag sourceKind = iota
	fromEnv
	fromFile
)

// source is the origin of a setting; the zero value is the command line.
type source struct {
	kind sourceKind
	name string // the variable, or the file and line
}

// Problems collects problems.
type Problems struct {
	list      []Problem
	sources   map[*kong.Flag]source
	faulty    map[*kong.Flag]bool
	lookupEnv func(string) (string, bool)
	context   *kong.Context
}

// Add reports a problem that belongs to no flag, such as one with a variable of which there may be any number.
func (p *Problems) Add(one Problem) { p.add(one) }

func (p *Problems) add(list ...Problem) { p.list = append(p.list, list...) }

func (p *Problems) addAt(flag *kong.Flag, what, fix string) {
	p.faulty[flag] = true
	p.add(Problem{Where: p.where(flag), What: what, Fix: fix})
}

// Addf reports a problem with the setting in the field that the pointer points to. It does nothing if one has been
// reported for that setting before.
func (p *Problems) Addf(field any, fix, format string, args ...any) {
	flag := p.flag(field)
	if !p.faulty[flag] {
		p.addAt(flag, fmt.Sprintf(format, args...), fix)
	}
}

// Where returns the origin of the setting in the field, for use in a problem with another setting.
func (p *Problems) Where(field any) string { return p.where(p.flag(field)) }

// Replaced returns the environment's variable whose value the command line replaces for the setting in the field; "" if there is none.
func (p *Problems) Replaced(field any) string {
	flag := p.flag(field)
	if !slices.ContainsFunc(p.context.Path, func(step *kong.Path) bool { return step.Flag == flag && !step.Resolved }) {
		return ""
	}
	for _, name := range flag.Envs {
		if value, _ := p.lookupEnv(name); value != "" {
			return name
		}
	}
	return ""
}

func (p *Problems) where(flag *kong.Flag) string {
	switch s := p.sources[flag]; s.kind {
	case fromEnv:
		return s.name + " in the environment"
	case fromFile:
		return s.name + ": " + flag.Name
	default:
		return "--" + flag.Name
	}
}

func (p *Problems) flag(field any) *kong.Flag {
	for _, flag := range p.context.Flags() {
		if flag.Target.CanAddr() && flag.Target.Addr().Interface() == field {
			return flag
		}
	}
	panic(fmt.Sprintf("config: %T is no field of the command", field))
}
