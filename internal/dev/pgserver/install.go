package pgserver

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the minimum major version.
const oldest = 15

// places are where packages install the programs outside of PATH: Debian, Red Hat's repository, Homebrew on either
// chip.
var places = []string{
	"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
}

// installation is a folder with PostgreSQL's programs.
type installation struct {
	bin   string
	major int
}

func (i installation) program(name string) string { return filepath.Join(i.bin, name) }

// choose returns the installation for data of a major version, or the newest if want is 0.
func choose(ctx context.Context, bin string, want int) (installation, error) {
	var bins []string
	if bin != "" {
		bins = []string{bin}
	} else {
		if found, err := exec.LookPath("postgres"); err == nil {
			if program, err := filepath.EvalSymlinks(found); err == nil {
				bins = append(bins, filepath.Dir(program))
			}
		}
		for _, place := range places {
			found, _ := filepath.Glob(place) // only a malformed pattern is an error
			bins = append(bins, found...)
		}
	}
	var all []installation
	var last error
	for _, b := range bins {
		i, err := inspect(ctx, b)
		if err != nil {
			last = err
			continue
		}
		all = append(all, i)
	}
	if len(all) == 0 {
		const remedy = "`apt-get install postgresql` on Debian and Ubuntu, `brew install postgresql@17` on macOS"
		if last != nil {
			return installation{}, fmt.Errorf("%w: %s: %w", ErrNotInstalled, remedy, last)
		}
		return installation{}, fmt.Errorf("%w: %s", ErrNotInstalled, remedy)
	}
	if i := slices.IndexFunc(all, func(i installation) bool { return i.major == want }); i >= 0 {
		return all[i], nil
	}
	return slices.MaxFunc(all, func(a, b installation) int { return cmp.Compare(a.major, b.major) }), nil
}

var versionPattern = regexp.MustCompile(`PostgreSQL\) (\d+)`)

// inspect runs the programs in a folder to get their version, and checks that all needed ones exist.
func inspect(ctx context.Context, bin string) (installation, error) {
	i := installation{bin: bin}
	if _, err := exec.LookPath(i.program("initdb")); err != nil {
		return i, err
	}
	out, err := exec.CommandContext(ctx, i.program("postgres"), "--version").Output()
	if err != nil {
		return i, fmt.Errorf("%s --version: %w", i.program("postgres"), err)
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return i, fmt.Errorf("%s --version: unreadable answer %q", i.program("postgres"), strings.TrimSpace(string(out)))
	}
	if i.major, err = strconv.Atoi(string(match[1])); err != nil {
		return i, err
	}
	if i.major < oldest {
		return i, fmt.Errorf("%s is of version %d, and %d or newer is needed", bin, i.major, oldest)
	}
	return i, nil
}
