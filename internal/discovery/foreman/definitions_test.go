package foreman

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestParseDefinitions_EveryForm_GivesTheSameServices(t *testing.T) {
	t.Parallel()
	want := []*rollcallv1.Service{{
		Id: "oz-relayer-0", Kind: "relayer",
		WorkerRef: &rollcallv1.WorkerRef{Url: "http://oz-relayer-0:3000", Node: "host-1", Labels: map[string]string{"region": "eu", "tier": "1"}},
	}}
	for name, c := range map[string]struct {
		format Format
		text   string
	}{
		"yaml list":     {YAML, "- id: oz-relayer-0\n  kind: relayer\n  worker_ref:\n    url: http://oz-relayer-0:3000\n    node: host-1\n    labels: {region: eu, tier: 1}\n"},
		"yaml one":      {YAML, "# ours\nid: oz-relayer-0\nkind: relayer\nworker_ref: {url: 'http://oz-relayer-0:3000', node: host-1, labels: {region: eu, tier: \"1\"}}\n"},
		"yaml services": {YAML, "---\nservices:\n- {id: oz-relayer-0, kind: relayer, worker_ref: {url: http://oz-relayer-0:3000, node: host-1, labels: {region: eu, tier: 1}}}\n"},
		"json as yaml":  {YAML, "{\n\t\"id\": \"oz-relayer-0\", \"kind\": \"relayer\",\n\t\"worker_ref\": {\"url\": \"http://oz-relayer-0:3000\", \"node\": \"host-1\", \"labels\": {\"region\": \"eu\", \"tier\": \"1\"}}}"},
		"json list":     {JSON, "\n[{\"id\":\"oz-relayer-0\",\"kind\":\"relayer\",\"worker_ref\":{\"url\":\"http://oz-relayer-0:3000\",\"node\":\"host-1\",\"labels\":{\"region\":\"eu\",\"tier\":\"1\"}}}]\n"},
		"json one":      {JSON, `{"id":"oz-relayer-0","kind":"relayer","worker_ref":{"url":"http://oz-relayer-0:3000","node":"host-1","labels":{"region":"eu","tier":"1"}}}`},
		"json services": {JSON, `{"services":[{"id":"oz-relayer-0","kind":"relayer","worker_ref":{"url":"http://oz-relayer-0:3000","node":"host-1","labels":{"region":"eu","tier":"1"}}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseDefinitions([]byte(c.text), c.format)
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.True(t, proto.Equal(want[0], got[0]), "%v", got[0])
		})
	}
	for _, text := range []string{"services: []", `{"services": []}`, "[]"} {
		for _, format := range []Format{JSON, YAML} {
			if format == YAML || text[0] != 's' {
				got, err := ParseDefinitions([]byte(text), format)
				require.NoError(t, err)
				require.Empty(t, got)
			}
		}
	}
}

func TestParseDefinitions_InvalidText_ReportsTheProblem(t *testing.T) {
	t.Parallel()
	valid := "{id: a, kind: relayer, worker_ref: {url: http://a:1}}"
	for name, c := range map[string]struct {
		format Format
		text   string
		want   string
	}{
		"empty":                 {YAML, " \n", "empty document; to define nothing, remove it or write services: []"},
		"only a comment":        {YAML, "# nothing here\n", "no service in the document; write one service"},
		"null":                  {YAML, "null", "no service in the document"},
		"null in JSON":          {JSON, "null", "no service in the document"},
		"services without list": {YAML, "services:\n", "no service in the document"},
		"scalar":                {YAML, "hello", "malformed YAML: cannot unmarshal"},
		"not UTF-8":             {YAML, "id: \xff", "not UTF-8"},
		"unknown field":         {YAML, "id: a\nkind: relayer\nworker_ref:\n  uri: http://a:1\n", "malformed YAML: unknown field uri in line 4"},
		"unknown field in JSON": {JSON, "{\"id\": \"a\",\n\"knd\": \"relayer\"}", `malformed JSON: unknown field "knd" in line 2`},
		"twice the same key":    {YAML, "id: a\nid: b\n", `malformed YAML: mapping key "id" already defined at line 1 in line 2`},
		"cut short":             {YAML, "- id: a\n  kind: relayer\n  worker_ref: {url: ht", "malformed YAML"},
		"cut short in JSON":     {JSON, `[{"id": "a", "ki`, "malformed JSON: unexpected EOF in line 1"},
		"two documents":         {YAML, "id: a\n---\nid: b\n", "more than one document"},
		"two values in JSON":    {JSON, `{"services":[]} {}`, "malformed JSON: more follows after the first value"},
		"alias":                 {YAML, "- &x " + valid + "\n- *x\n", "an anchor or alias in line 1; write the value out"},
		"service and services":  {YAML, "id: a\nservices: []\n", "a service beside services"},
		"too many services":     {JSON, "[" + strings.Repeat("{},", 10_000) + "{}]", "10001 services; split them across several gateway ids"},
		"too many in YAML":      {YAML, "[" + strings.Repeat("a,", 10_000) + "a]", "10001 services; split them across several gateway ids"},
		"too many keys":         {YAML, "id: a\nworker_ref:\n  labels: {" + strings.Repeat("k, ", 200) + "}\n", "a mapping of 200 keys in line 3"},
		"too many bytes":        {YAML, strings.Repeat("#", maxDocument+1), "document of 4194305 bytes"},
		"twice the same id":     {YAML, "[" + valid + "," + valid + "]", `invalid services in services[1].id: services[1].id: "a" is that of services[0] already`},
		"no worker":             {YAML, "{id: a, kind: relayer}", "services[0].worker_ref.url: is empty"},
		"everything wrong":      {YAML, "[{id: A_b, kind: '', worker_ref: {url: 'ftp://x'}}]", "invalid services in services[0].id: services[0].id: \"A_b\" is not a DNS label: only a-z, 0-9 and '-' are allowed; services[0].kind: is empty"},
		"too large":             {YAML, "{id: a, kind: b, worker_ref: {url: http://a:1, labels: {" + labels(64, 250) + "}}}", "makes a service of 16"},
		"nested without end":    {YAML, strings.Repeat("[", 1<<20), "malformed YAML"},
		"nested mappings":       {YAML, strings.Repeat("{a: ", 1<<18), "malformed YAML"},
		"nested in JSON":        {JSON, strings.Repeat("[", 1<<20), "malformed JSON"},
		"keys without end":      {YAML, keys(20_000), "a mapping of 20000 keys"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseDefinitions([]byte(c.text), c.format)
			require.ErrorContains(t, err, c.want)
			require.IsType(t, &Problem{}, err)
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 2000)
		})
	}
}

func labels(n, size int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: %s,", i, strings.Repeat("x", size))
	}
	return b.String()
}

func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: v\n", i)
	}
	return b.String()
}

func TestDefinition_OfService_RoundTrips(t *testing.T) {
	t.Parallel()
	s := &rollcallv1.Service{Id: "a", Kind: "b", WorkerRef: &rollcallv1.WorkerRef{Url: "tcp://a:1", Node: "n", Labels: map[string]string{"x": "y"}}}
	require.True(t, proto.Equal(s, definitionOf(s).service()))
}

// For any input, the result must be a set that a coordinator accepts, or a problem.
func FuzzDefinitions(f *testing.F) {
	seeds, err := filepath.Glob("testdata/definitions/*")
	require.NoError(f, err)
	require.NotEmpty(f, seeds)
	for _, name := range seeds {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(text, strings.HasSuffix(name, ".yaml"))
	}
	f.Fuzz(func(t *testing.T, data []byte, isYAML bool) {
		format := JSON
		if isYAML {
			format = YAML
		}
		services, err := ParseDefinitions(data, format)
		if err != nil {
			if p, ok := errors.AsType[*Problem](err); !ok || p.What == "" || p.How == "" || strings.Contains(p.Error(), "\n") {
				t.Fatalf("%#v", err)
			}
			return
		}
		ids := map[string]bool{}
		for _, s := range services {
			if v := s.Validate(); len(v) > 0 {
				t.Fatal(v)
			}
			if ids[s.GetId()] {
				t.Fatalf("%q twice", s.GetId())
			}
			ids[s.GetId()] = true
			if _, err := proto.Marshal(s); err != nil {
				t.Fatal(err)
			}
		}
		if len(services) > rollcallv1.MaxServicesPerCall {
			t.Fatal(len(services))
		}
	})
}
