// Package prometheus tests the alert rules without promtool: what they name must exist.
package prometheus

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// alert is a rule of one of the files.
type alert struct {
	Name        string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Annotations map[string]string `yaml:"annotations"`
}

// groups are the files of rules, of which each has tests.
var groups = []string{"cluster", "relay", "relayer", "escrow"}

func alerts(t *testing.T, group string) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	read(t, group+".rules.yml", &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func read(t *testing.T, name string, to any) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, to))
}

var (
	// The escrow monitor's documents name some of its metrics, without the prefix rollcall.
	metricName = regexp.MustCompile(`\b(rollcall|relayer|total|leader|event)_[a-z0-9_]+`)
	literal    = regexp.MustCompile(`"((rollcall|relayer|total|leader|event)_[a-z0-9_]+)"`)
	suffix     = regexp.MustCompile(`_(bucket|sum|count)$`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
)

// An alert on a missing metric never fires.
func TestAlerts_MetricsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../../internal", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range literal.FindAllSubmatch(source, -1) {
			known[string(found[1])] = true
		}
		return err
	}))
	for _, group := range groups {
		for _, a := range alerts(t, group) {
			for _, name := range metricName.FindAllString(a.Expr, -1) {
				require.True(t, known[name] || known[suffix.ReplaceAllString(name, "")], "%s: no metric has the name %s", a.Name, name)
			}
		}
	}
}

func TestAlerts_EachHasFiringTest(t *testing.T) {
	t.Parallel()
	for _, group := range groups {
		var file struct {
			Tests []struct {
				Cases []struct {
					Name   string `yaml:"alertname"`
					Alerts []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			} `yaml:"tests"`
		}
		read(t, group+".test.yml", &file)
		fired := map[string]bool{}
		for _, test := range file.Tests {
			for _, c := range test.Cases {
				fired[c.Name] = fired[c.Name] || len(c.Alerts) > 0
			}
		}
		for _, a := range alerts(t, group) {
			require.True(t, fired[a.Name], "%s is never fired", a.Name)
		}
	}
}

// An operator who gets an alert opens its page, which must have a part about it.
func TestAlerts_EachHasARunbook(t *testing.T) {
	t.Parallel()
	const page = "https://github.com/rollcall-dev/rollcall/blob/main/docs/operate.md#"
	text, err := os.ReadFile("../../docs/operate.md")
	require.NoError(t, err)
	parts := map[string]string{} // by anchor, as GitHub makes it of a heading of one word
	found := heading.FindAllSubmatchIndex(text, -1)
	for i, at := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		parts[strings.ToLower(string(text[at[2]:at[3]]))] = strings.TrimSpace(string(text[at[1]:end]))
	}
	named := map[string]bool{}
	for _, group := range groups {
		for _, a := range alerts(t, group) {
			anchor, ok := strings.CutPrefix(a.Annotations["runbook_url"], page)
			require.True(t, ok, "%s: runbook_url is %q, not one of %s", a.Name, a.Annotations["runbook_url"], page)
			require.Equal(t, strings.ToLower(a.Name), anchor)
			require.NotEmpty(t, parts[anchor], "%s: docs/operate.md has no part about it", a.Name)
			require.NotEmpty(t, a.Annotations["summary"], a.Name)
			require.NotEmpty(t, a.Annotations["description"], a.Name)
			named[anchor] = true
		}
	}
	for _, at := range found {
		if title := string(text[at[2]:at[3]]); !strings.Contains(title, " ") && title != "Alerts" {
			require.True(t, named[strings.ToLower(title)], "docs/operate.md: no alert has the name %s", title)
		}
	}
}
