package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type serve struct {
	Config   string         `env:"T_CONFIG" help:"Settings file."`
	Count    int            `env:"T_COUNT" default:"3" min:"0" max:"10" help:"How many."`
	Share    float64        `env:"T_SHARE" default:"0.5" min:"0" max:"1" help:"Which part."`
	Wait     time.Duration  `env:"T_WAIT" default:"1s" min:"1ms" help:"How long."`
	Timing   string         `env:"T_TIMING" default:"lan" enum:"lan,wan" help:"Which timing."`
	Peers    []string       `env:"T_PEERS" help:"Who else."`
	Require  map[string]int `env:"T_REQUIRE" mapsep:"," help:"How many of each."`
	On       bool           `env:"T_ON" help:"Whether."`
	Password string         `env:"T_PASSWORD" secret:"" help:"Secret."`
	Secret   int            `env:"T_SECRET" secret:"" help:"Secret number."`
	URL      string         `env:"T_URL" help:"Where."`
}

func (s *serve) Check(p *config.Problems) {
	if s.URL == "http://x" && s.Timing == "lan" {
		p.Addf(&s.URL, "give one of them", "contradicts %s", p.Where(&s.Timing))
	}
	if s.Count > 5 && s.Count != 7 {
		p.Addf(&s.Count, "", "is no good number")
	}
}

type grammar struct {
	Serve serve    `cmd:"" help:"Serve."`
	Other struct{} `cmd:"" help:"Something else."`
}

func parse(t *testing.T, env map[string]string, args ...string) (serve, error) {
	t.Helper()
	var g grammar
	p, err := config.New(&g, config.Options{
		Name:      "tool",
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Stdout:    new(bytes.Buffer), Stderr: new(bytes.Buffer),
	})
	require.NoError(t, err)
	_, err = p.Parse(args)
	return g.Serve, err
}

func settingsFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tool.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

var defaults = serve{Count: 3, Share: 0.5, Wait: time.Second, Timing: "lan"}

func TestParse_Precedence(t *testing.T) {
	t.Parallel()
	path := settingsFile(t, "count: 4\nshare: 0.25\nwait:\ntiming: wan # a comment\npeers: [a=1, 'b,c']\nrequire: {relayer: 2}\non: true\n")

	got, err := parse(t, nil, "serve")
	require.NoError(t, err)
	require.Equal(t, defaults, got)

	want := serve{Config: path, Count: 4, Share: 0.25, Wait: time.Second, Timing: "wan",
		Peers: []string{"a=1", "b,c"}, Require: map[string]int{"relayer": 2}, On: true}
	got, err = parse(t, nil, "serve", "--config", path)
	require.NoError(t, err)
	require.Equal(t, want, got, "the file beats the defaults")

	want.Share = 0.75
	env := map[string]string{"T_CONFIG": path, "T_SHARE": "0.75", "T_COUNT": ""}
	got, err = parse(t, env, "serve")
	require.NoError(t, err)
	require.Equal(t, want, got, "the environment beats the file, but not when empty")

	want.Share, want.Count = 1, 0
	got, err = parse(t, env, "serve", "--share=1", "--count", "0")
	require.NoError(t, err)
	require.Equal(t, want, got, "a flag beats the environment")
}

func TestParse_SeveralProblems_ReportsAll(t *testing.T) {
	t.Parallel()
	path := settingsFile(t, "cuont: 4\nwait: soon\nshare: [1, 2]\nshare: 1\nurl: http://x\n")
	_, err := parse(t, map[string]string{
		"T_CONFIG": path, "T_COUNT": "many", "T_TIMING": "moon", "T_SECRET": "hunter2", "T_ON": "perhaps",
	}, "serve", "--share", "1.5")
	failure := new(config.Error)
	require.ErrorAs(t, err, &failure)
	require.Equal(t, "tool serve", failure.Command)
	var got []string
	for _, p := range failure.Problems {
		got = append(got, p.String())
	}
	require.Equal(t, []string{
		`--share: "1.5" is above 1; allowed: 0 to 1`,
		path + `:1: "cuont" is not a setting; did you mean count?`,
		path + `:3: share: must be a plain value (it is: sequence)`,
		`T_COUNT in the environment: "many" is not a whole number; allowed: 0 to 10`,
		path + `:2: wait: "soon" is not a duration such as "500ms" or "10s"; allowed: at least 1ms`,
		`T_TIMING in the environment: "moon" is not one of lan, wan; the default is lan`,
		`T_ON in the environment: "perhaps" is not true or false`,
		`T_SECRET in the environment: the value is not a whole number`,
		path + `:5: url: contradicts T_TIMING in the environment; give one of them`,
	}, got)
	require.NotContains(t, err.Error(), "hunter2")
	require.Contains(t, err.Error(), "tool serve: 9 problems\n  - --share: ")
	require.Contains(t, err.Error(), `Run "tool serve --help" for its flags.`)
}

func TestParse_BadCommandLine_Fails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":        {nil, `tool: command line: expected one of "serve", "other"`},
		"no command":     {[]string{"sreve"}, `tool: command line: "sreve" is not a command of tool; did you mean serve? It has serve, other`},
		"unknown flags":  {[]string{"serve", "--cuont=1", "--x", "y"}, "  - --cuont: is not a flag of tool serve; did you mean --count?\n  - --x: is not a flag of tool serve\n"},
		"and other ones": {[]string{"serve", "--share=3", "--what"}, "  - --share: \"3\" is above 1; allowed: 0 to 1\n  - --what: is not a flag of tool serve; did you mean --wait?\n  - T_COUNT in"},
		"no value":       {[]string{"serve", "--url"}, "command line: --url: needs a value"},
		"flag for value": {[]string{"serve", "--url", "--on"}, "command line: --url: needs a value"},
		"argument":       {[]string{"serve", "x"}, `tool serve: command line: "x" is more than tool serve takes`},
		"checked":        {[]string{"serve", "--count=6"}, "tool serve: --count: is no good number\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{}
			if name == "and other ones" {
				env["T_COUNT"] = "none"
			}
			_, err := parse(t, env, c.args...)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestParse_BadFile_Fails(t *testing.T) {
	t.Parallel()
	_, err := parse(t, nil, "serve", "--config", "/nowhere/tool.yaml")
	require.ErrorContains(t, err, "/nowhere/tool.yaml: open /nowhere/tool.yaml: no such file or directory; name a readable file")
	for content, want := range map[string]string{
		"count: [":                    "tool.yaml:1: is not valid YAML: ",
		"- count":                     "tool.yaml:1: must hold a mapping from settings to values",
		"count: 1\ncount: 2":          `tool.yaml:2: "count" is given twice; remove one`,
		"require: {a: [1]}":           "tool.yaml:1: require: must be a plain value (it is: sequence)",
		"peers: [[1]]":                "tool.yaml:1: peers: must be a plain value (it is: sequence)",
		"config: x":                   `tool.yaml:1: "config" is not a setting`,
		"require: {a: b}":             "tool.yaml:1: require: ",
		"url: &a http://x\npeers: *a": "tool.yaml:1: url: must be a plain value (it is: anchor)",
		"url: &secret":                "tool.yaml:1: url: must be a plain value (it is: anchor); put a value that begins with & in quotes",
		"url: !secret":                "tool.yaml:1: url: must be a plain value (it is: tag); put a value that begins with ! in quotes",
		"require: {a: 1, a: 2}":       `tool.yaml:1: require: "a" is given twice`,
	} {
		_, err := parse(t, nil, "serve", "--config", settingsFile(t, content))
		require.ErrorContains(t, err, want, content)
	}
	for _, empty := range []string{"", " # none yet", " ~", " null", ` ""`, " ''", " []", ` [""]`, " |"} {
		_, err := parse(t, nil, "serve", "--config", settingsFile(t, "count: 1\npeers:"+empty+"\n"))
		require.ErrorContains(t, err, "tool.yaml:2: peers: is an empty list: leave it out", "%q", empty)
	}
	_, err = parse(t, map[string]string{"T_PEERS": ""}, "serve")
	require.NoError(t, err, "an empty variable is none")
	_, err = parse(t, nil, "serve", "--config", settingsFile(t, string(make([]byte, 2<<20))))
	require.ErrorContains(t, err, "is larger than 65536 bytes")
	for _, content := range []string{"", "# nothing\n", "---\n", "peers:\n- a\n- b\n", "url: |\n  x\n"} {
		_, err := parse(t, nil, "serve", "--config", settingsFile(t, content))
		require.NoError(t, err, content)
	}
}

func TestParse_Help(t *testing.T) {
	t.Parallel()
	var g grammar
	var out bytes.Buffer
	p, err := config.New(&g, config.Options{Name: "tool", Stdout: &out, Stderr: &out})
	require.NoError(t, err)
	_, err = p.Parse([]string{"serve", "--help"})
	require.ErrorIs(t, err, config.ErrHelp)
	require.Contains(t, out.String(), "How many, 0 to 10 [$T_COUNT]")
	require.Contains(t, out.String(), "Which timing, lan or wan [$T_TIMING]")
}

func FuzzFile(f *testing.F) {
	f.Add("count: 4\npeers: [a, b]\n")
	f.Add("require: {a: 1}\n? x\n: y\n")
	f.Add("a: &b {<<: *b}")
	f.Fuzz(func(t *testing.T, content string) {
		_, _ = parse(t, nil, "serve", "--config", settingsFile(t, content))
	})
}
