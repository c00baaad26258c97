// Package scripts has what can be said about the scripts where nobody may install anything: with stand-ins for the
// programs that they call.
package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// programs are stand-ins for what a script calls, by name, written in shell. Each notes its calls in the file named
// by CALLS, one a line.
type programs map[string]string

// outcome of a script.
type outcome struct {
	stdout, stderr string
	code           int
	calls          []string
}

// script runs one of this folder with the stand-ins before everything else in PATH.
func script(t *testing.T, stubs programs, env []string, name string, args ...string) outcome {
	t.Helper()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	for program, body := range stubs {
		text := "#!/bin/sh\necho \"" + program + " $*\" >>\"$CALLS\"\n" + body + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte(text), 0o700))
	}
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{name}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CALLS="+calls)
	cmd.Env = append(cmd.Env, env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	noted, err := os.ReadFile(calls)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode(), strings.Split(strings.TrimSpace(string(noted)), "\n")}
}

// An image that somebody named is run, or nothing is: the stand-in is for those who named none.
func TestRedisImage(t *testing.T) {
	t.Parallel()
	// An engine that has the images of HERE, and finds those of ELSEWHERE in a registry.
	docker := `
has() { case " $1 " in *" $2 "*) return 0 ;; esac; return 1; }
case "$1 $2" in
  "image inspect") has "$HERE" "$3" ;;
  "pull --quiet") has "$ELSEWHERE" "$3" && echo "$3" || { echo "manifest for $3 not found" >&2; exit 1; } ;;
  *) exit 3 ;;
esac`
	const inspect, pull = "docker image inspect ", "docker pull --quiet "
	for name, tc := range map[string]struct {
		named, here, elsewhere string
		want                   outcome
	}{
		"named and here": {
			named: "mine:1", here: "mine:1",
			want: outcome{stdout: "mine:1\n", calls: []string{inspect + "mine:1"}},
		},
		"named and pulled": {
			named: "mine:1", elsewhere: "mine:1",
			want: outcome{stdout: "mine:1\n", calls: []string{inspect + "mine:1", pull + "mine:1"}},
		},
		"named and nowhere": {
			named: "mine:1", here: "rollcall/redis-standin:7 redis:7-alpine",
			want: outcome{
				stderr: "REDIS_IMAGE: mine:1 is neither here nor to be pulled: manifest for mine:1 not found\n", code: 1,
				calls: []string{inspect + "mine:1", pull + "mine:1"},
			},
		},
		"none named": {
			elsewhere: "redis:7-alpine",
			want:      outcome{stdout: "redis:7-alpine\n", calls: []string{inspect + "redis:7-alpine", pull + "redis:7-alpine"}},
		},
		"none named, without a registry": {
			here: "rollcall/redis-standin:7",
			want: outcome{
				stdout: "rollcall/redis-standin:7\n",
				calls:  []string{inspect + "redis:7-alpine", pull + "redis:7-alpine", inspect + "rollcall/redis-standin:7"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"REDIS_IMAGE=" + tc.named, "HERE=" + tc.here, "ELSEWHERE=" + tc.elsewhere}
			require.Equal(t, tc.want, script(t, programs{"docker": docker}, env, "redis-image.sh"))
		})
	}
}
