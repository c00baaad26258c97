// Package scripts tests the scripts without installing anything: stand-ins replace the programs that the scripts call.
package scripts

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// programs are stand-ins for the programs that a script calls, by name, written in shell.
type programs map[string]string

// tools are the programs that a script may call besides its stand-ins.
var tools = []string{"awk", "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "grep", "head", "ln", "mkdir", "mktemp", "mv", "rm", "sed", "sort", "tee", "tr"}

// outcome is the result of a script.
type outcome struct {
	stdout, stderr string
	code           int
	calls          []string // of the stand-ins
}

// script runs a script with only the stand-ins and the tools in PATH. BIN is their folder.
func script(t *testing.T, stubs programs, env []string, path string, args ...string) outcome {
	t.Helper()
	bin, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	for program, body := range stubs {
		text := "#!/bin/sh\necho \"${0##*/} $*\" >>\"$CALLS\"\n" + body + "\n"
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte(text), 0o700))
	}
	for _, tool := range tools {
		if _, ok := stubs[tool]; !ok {
			found, err := exec.LookPath(tool)
			require.NoError(t, err)
			require.NoError(t, os.Symlink(found, filepath.Join(bin, tool)))
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "bash"), append([]string{path}, args...)...)
	cmd.Env = append(env, "PATH="+bin, "BIN="+bin, "CALLS="+calls)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		require.IsType(t, &exec.ExitError{}, err)
	}
	noted, err := os.ReadFile(calls)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode(), strings.FieldsFunc(string(noted), func(c rune) bool { return c == '\n' })}
}

// A named image is run or the command fails: the stand-in image is used only if none is named.
func TestImage_Named_IsRunOrFails(t *testing.T) {
	t.Parallel()
	// A container engine that has the images of HERE, and finds those of ELSEWHERE in a registry.
	docker := `
has() { case " $1 " in *" $2 "*) return 0 ;; esac; return 1; }
case "$1 $2" in
  "image inspect") has "$HERE" "$3" ;;
  "pull --quiet") has "$ELSEWHERE" "$3" && echo "$3" || { echo "manifest for $3 not found" >&2; exit 1; } ;;
  *) exit 3 ;;
esac`
	const inspect, pull = "docker image inspect ", "docker pull --quiet "
	for server, image := range map[string]struct{ variable, official, standin string }{
		"redis":    {"REDIS_IMAGE", "redis:7-alpine", "rollcall/redis-standin:7"},
		"postgres": {"POSTGRES_IMAGE", "postgres:15-alpine", "rollcall/postgres-standin:1"},
	} {
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
				named: "mine:1", here: image.standin + " " + image.official,
				want: outcome{
					stderr: image.variable + ": mine:1 is neither here nor to be pulled: manifest for mine:1 not found\n", code: 1,
					calls: []string{inspect + "mine:1", pull + "mine:1"},
				},
			},
			"none named": {
				elsewhere: image.official,
				want:      outcome{stdout: image.official + "\n", calls: []string{inspect + image.official, pull + image.official}},
			},
			"none named, without a registry": {
				here: image.standin,
				want: outcome{
					stdout: image.standin + "\n",
					calls:  []string{inspect + image.official, pull + image.official, inspect + image.standin},
				},
			},
		} {
			t.Run(server+", "+name, func(t *testing.T) {
				t.Parallel()
				env := []string{image.variable + "=" + tc.named, "HERE=" + tc.here, "ELSEWHERE=" + tc.elsewhere}
				require.Equal(t, tc.want, script(t, programs{"docker": docker}, env, "image.sh", server))
			})
		}
	}
	got := script(t, nil, nil, "image.sh", "mysql")
	require.Equal(t, outcome{stderr: "image: redis or postgres?\n", code: 2, calls: []string{}}, got)
}

// setup.sh lists what it is going to install before it installs anything.
func TestSetup_ListsWhatIsMissing(t *testing.T) {
	t.Parallel()
	setup, err := os.ReadFile("setup.sh")
	require.NoError(t, err)
	root := t.TempDir()
	text := string(setup)
	for _, folder := range []string{"/usr/lib/postgresql", "/usr/pgsql-", "/opt/homebrew", "/usr/local/opt", "/etc/postgresql"} {
		text = strings.ReplaceAll(text, " "+folder, " "+root+folder)
	}
	require.NoError(t, os.Mkdir(filepath.Join(root, "scripts"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "scripts", "setup.sh"), []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module x\n\ngo 1.26.0\n"), 0o600))
	stubs := programs{"make": "", "curl": "", "uname": "echo Linux", "id": "echo 0", "tee": "cat >/dev/null", "rm": "", "chmod": "", "apt-get": "exit 1"}
	got := script(t, stubs, nil, filepath.Join(root, "scripts", "setup.sh"), "run")
	require.Equal(t, 1, got.code)
	list := "setup: missing here, and installed now:\n  Go 1.26.0, through apt-get or the module proxy\n  packages: redis-server redis-tools postgresql\n"
	require.True(t, strings.HasPrefix(got.stderr, list), got.stderr)
	require.Contains(t, got.calls, "apt-get update -qq")
}

// A slow command is reported as still running. Its output and its exit code are unchanged, and no file is left behind.
func TestProgress_SlowCommand_IsReported(t *testing.T) {
	t.Parallel()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	// The command ends once the second tick is over.
	stubs := programs{
		"sleep": `case $(cat "$BIN/ticks" 2>/dev/null) in
  xx) exec "` + sleep + `" 1000 ;;
esac
printf x >>"$BIN/ticks"`,
		"work": `echo out; while [ "$(cat "$BIN/ticks" 2>/dev/null)" != xx ]; do :; done; exit 7`,
	}
	got := script(t, stubs, nil, "progress.sh", "10", "working", "work")
	require.Equal(t, 7, got.code)
	require.Equal(t, "out\n", got.stdout)
	require.Regexp(t, `^(working: \d+ s so far\n){1,2}$`, got.stderr)
}

// A port taken by another program is reported with the variable that changes it, before anything is built. The
// project's own ports are not reported.
func TestCompose_PortTaken(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		ours  string // ids of the project's containers that publish the port
		taken bool
	}{"by another": {taken: true}, "by the project": {ours: "abc"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			docker := `case "$1" in ps) echo $OURS ;; build) echo no >&2; exit 1 ;; esac`
			env := []string{"OURS=" + tc.ours, "COORDINATOR_1_HTTP=", "COORDINATOR_2_HTTP=" + port}
			for _, other := range []string{"COORDINATOR_3_HTTP", "RELAYER_0_HTTP", "RELAYER_1_HTTP", "RELAYER_2_HTTP", "API_1_HTTP", "API_2_HTTP"} {
				env = append(env, other+"=")
			}
			got := script(t, programs{"docker": docker}, env, "compose.sh", "up")
			require.Equal(t, 1, got.code)
			want := "compose: port " + port + " is taken: choose another one with COORDINATOR_2_HTTP=PORT, or let Docker choose one with COORDINATOR_2_HTTP=\n"
			built := slices.ContainsFunc(got.calls, func(c string) bool { return strings.HasPrefix(c, "docker build ") })
			require.Equal(t, tc.taken, got.stderr == want, got.stderr)
			require.Equal(t, !tc.taken, built, got.calls)
		})
	}
}

// The README's commands work with either Compose, also without a terminal.
func TestCompose_EitherVersion(t *testing.T) {
	t.Parallel()
	const args = " -p rollcall -f deploy/compose.yaml "
	for name, tc := range map[string]struct {
		stubs programs
		call  string
	}{
		"v2":   {programs{"docker": ""}, "docker compose"},
		"1.29": {programs{"docker": `[ "$1" != compose ]`, "docker-compose": ""}, "docker-compose"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := script(t, tc.stubs, nil, "compose.sh", "exec", "redis", "redis-cli", "ping")
			require.Zero(t, got.code, got.stderr)
			require.Contains(t, got.calls, tc.call+args+"exec -T redis redis-cli ping")
			got = script(t, tc.stubs, nil, "compose.sh", "logs", "--tail", "3", "chain")
			require.Zero(t, got.code, got.stderr)
			require.Contains(t, got.calls, tc.call+args+"logs --tail 3 chain")
		})
	}
}

// setup.sh finds a Go that builds the project, whichever Go the machine has, or prints how to get one.
func TestSetup_Go_IsFoundOrExplained(t *testing.T) {
	t.Parallel()
	chmod, err := exec.LookPath("chmod")
	require.NoError(t, err)
	setup, err := os.ReadFile("setup.sh")
	require.NoError(t, err)
	// A Go of version HAVE. From 1.21 on it downloads the version of go.mod by itself, and then is that version.
	const golang = `
case "$*" in
  "env "*) case $HAVE in
    1.1*) ;;
    *) [ -n "$PROXY" ] || [ "$PWD" = / ] || { echo "go: download go1.26.0: no route to host" >&2; exit 1; } ;;
  esac ;;
esac
case "$*" in
  "env GOVERSION") case $HAVE in 1.1*) echo "go$HAVE" ;; *) echo go1.26.0 ;; esac ;;
  "env GOOS") echo linux ;;
  "env GOARCH") echo amd64 ;;
  "mod download -json golang.org/toolchain@v0.0.1-go1.26.0.linux-amd64")
    [ -n "$PROXY" ] || { printf '{\n\t"Path": "golang.org/toolchain",\n\t"Error": "dial tcp: no route to host"\n}\n'; exit 1; }
    mkdir -p "$BIN/cache/bin" "$BIN/cache/pkg/tool"
    printf '#!/bin/sh\necho go1.26.0\n' >"$BIN/cache/bin/go"
    printf '{\n\t"Path": "golang.org/toolchain",\n\t"Dir": "%s",\n\t"Sum": "h1:x"\n}\n' "$BIN/cache" ;;
  *) exit 3 ;;
esac`
	const packages = `[ "$1" != install ] || cp "$BIN/debian-go" "$BIN/go"`
	var (
		version = []string{"go env GOVERSION"}
		fetch   = []string{"go env GOOS", "go env GOARCH", "go mod download -json golang.org/toolchain@v0.0.1-go1.26.0.linux-amd64"}
		install = []string{"apt-get update -qq", "apt-get install -y -qq --no-install-recommends golang-go ca-certificates"}
	)
	for name, tc := range map[string]struct {
		golang, apt bool
		have, proxy string
		calls       []string
		says        string // last line of an error
	}{
		"new enough, or fetches what is": {golang: true, have: "1.24.4", proxy: "yes", calls: version},
		"too old":                        {golang: true, have: "1.19.8", proxy: "yes", calls: slices.Concat(version, fetch)},
		"none":                           {apt: true, have: "1.24.4", proxy: "yes", calls: slices.Concat(install, version)},
		"none, and only an old one":      {apt: true, have: "1.19.8", proxy: "yes", calls: slices.Concat(install, version, fetch)},
		"too old, without a proxy": {
			golang: true, have: "1.19.8", calls: slices.Concat(version, fetch, version),
			says: "dial tcp: no route to host\nsetup: Go 1.26.0 is needed and could not be fetched: install it, or a newer one, and put it into PATH\n",
		},
		"fetches what is new enough, without a proxy": {
			golang: true, have: "1.22.2", calls: slices.Concat(version, fetch, version),
			says: "no route to host\nsetup: Go 1.26.0 is needed and could not be fetched: install it, or a newer one, and put it into PATH\n",
		},
		"none, without apt": {says: "setup: Go is missing: install Go 1.26.0 or newer and put it into PATH\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(root, "scripts"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, "scripts", "setup.sh"), setup, 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module x\n\ngo 1.26.0\n"), 0o600))
			stubs := programs{
				"debian-go": golang, "id": "echo 0", "uname": "echo Linux",
				// Preventing services from starting does not change this machine.
				"tee": "cat >/dev/null", "rm": "", "chmod": `[ "$1" = 755 ] || "` + chmod + `" "$@"`,
			}
			if tc.golang {
				stubs["go"] = golang
			}
			if tc.apt {
				stubs["apt-get"] = packages
			}
			run := func() (outcome, []string) {
				got := script(t, stubs, []string{"HAVE=" + tc.have, "PROXY=" + tc.proxy}, filepath.Join(root, "scripts", "setup.sh"), "build")
				return got, slices.DeleteFunc(got.calls, func(c string) bool { return !strings.HasPrefix(c, "go ") && !strings.HasPrefix(c, "apt-get ") })
			}
			got, calls := run()
			require.Equal(t, append([]string{}, tc.calls...), calls, got.stderr)
			require.Equal(t, tc.says != "", got.code != 0, got.stderr)
			require.True(t, strings.HasSuffix(got.stderr, tc.says), got.stderr)
			if tc.says == "" && slices.Contains(tc.calls, fetch[2]) { // the downloaded file exists at the next run
				got, calls = run()
				require.Zero(t, got.code, got.stderr)
				require.Empty(t, calls)
			}
		})
	}
}

// PostgreSQL is found where packages install it, outside of PATH. An installed one starts no server by itself.
func TestSetup_Postgres_IsFoundOutsidePath(t *testing.T) {
	t.Parallel()
	setup, err := os.ReadFile("setup.sh")
	require.NoError(t, err)
	const debian = `
[ "$1" != install ] || {
  mkdir -p "$ROOT/etc/postgresql/15/main"
  printf '# auto: started at boot\nauto\n' >"$ROOT/etc/postgresql/15/main/start.conf"
}`
	const install = "apt-get install -y -qq --no-install-recommends postgresql"
	for name, tc := range map[string]struct {
		uname, at string
		path      bool
		installs  bool
		says      string // last line of an error
	}{
		"none":                   {uname: "Linux", installs: true},
		"Debian's":               {uname: "Linux", at: "/usr/lib/postgresql/15/bin"},
		"in PATH":                {uname: "Linux", path: true},
		"none, on macOS":         {uname: "Darwin", says: "setup: please install: brew install postgresql@17 \n"},
		"Homebrew's":             {uname: "Darwin", at: "/opt/homebrew/opt/postgresql@15/bin"},
		"Homebrew's, on Intel's": {uname: "Darwin", at: "/usr/local/opt/postgresql@17/bin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			text := string(setup)
			for _, folder := range []string{"/usr/lib/postgresql", "/usr/pgsql-", "/opt/homebrew", "/usr/local/opt", "/etc/postgresql"} {
				require.Contains(t, text, " "+folder)
				text = strings.ReplaceAll(text, " "+folder, " "+root+folder)
			}
			require.NoError(t, os.Mkdir(filepath.Join(root, "scripts"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, "scripts", "setup.sh"), []byte(text), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module x\n\ngo 1.26.0\n"), 0o600))
			if tc.at != "" {
				require.NoError(t, os.MkdirAll(filepath.Join(root, tc.at), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(root, tc.at, "postgres"), nil, 0o700))
			}
			stubs := programs{
				"go": "echo go1.26.0", "make": "", "curl": "", "redis-server": "", "redis-cli": "", "uname": "echo " + tc.uname, "id": "echo 0",
				"apt-get": debian, "tee": "cat >/dev/null", "rm": "", "chmod": "", "tr": `read -r f; printf '%s ' "$f"`,
			}
			if tc.path {
				stubs["postgres"] = ""
			}
			got := script(t, stubs, []string{"ROOT=" + root}, filepath.Join(root, "scripts", "setup.sh"), "run")
			require.Equal(t, tc.says != "", got.code != 0, got.stderr)
			require.True(t, strings.HasSuffix(got.stderr, tc.says), got.stderr)
			require.Equal(t, tc.installs, slices.Contains(got.calls, install), got.calls)
			if tc.installs {
				conf, err := os.ReadFile(filepath.Join(root, "etc/postgresql/15/main/start.conf"))
				require.NoError(t, err)
				require.Equal(t, "# auto: started at boot\nmanual\n", string(conf))
			}
		})
	}
}
