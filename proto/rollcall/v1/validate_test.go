package rollcallv1

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

func goodService() *Service {
	return &Service{Id: "oz-relayer-1", Kind: "relayer", WorkerRef: &WorkerRef{
		Url: "http://oz-relayer-1:3000", Node: "host-1", Labels: map[string]string{"chain": "1", "note": ""},
	}}
}

func labels(n, valueBytes int) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		key := fmt.Sprintf("key-%d-", i)
		m[key+strings.Repeat("k", MaxLabelKeyBytes-len(key))] = strings.Repeat("v", valueBytes)
	}
	return m
}

func TestValidate_EveryField_ReportsViolations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		edit func(*Service)
		want []string
	}{
		{"good", func(*Service) {}, nil},
		{"shortest names", func(s *Service) { s.Id, s.Kind = "a", "0" }, nil},
		{"longest names", func(s *Service) { s.Id, s.Kind = strings.Repeat("a", 63), strings.Repeat("9", 63) }, nil},
		{"no node and no labels", func(s *Service) { s.WorkerRef.Node, s.WorkerRef.Labels = "", nil }, nil},
		{"as many labels as there may be", func(s *Service) { s.WorkerRef.Labels = labels(MaxLabels, 10) }, nil},
		{"as long a label as there may be", func(s *Service) { s.WorkerRef.Labels = labels(1, MaxLabelValueBytes) }, nil},

		{"nothing in it", func(s *Service) { proto.Reset(s) }, []string{
			`id: is empty; it must be a DNS label such as "oz-relayer-1"`,
			`kind: is empty; it must be a DNS label such as "oz-relayer-1"`,
			`worker_ref.url: is empty; it must be a URL such as "http://oz-relayer-1:3000"`,
		}},
		{"no worker_ref", func(s *Service) { s.WorkerRef = nil }, []string{
			`worker_ref.url: is empty; it must be a URL such as "http://oz-relayer-1:3000"`,
		}},
		{"everything wrong at once", func(s *Service) {
			s.Id, s.Kind = "A", "-"
			s.WorkerRef = &WorkerRef{
				Url: "ftp://x", Node: strings.Repeat("n", 254), Labels: map[string]string{"": "x", "b": strings.Repeat("v", 257)},
			}
		}, []string{
			`id: "A" is not a DNS label: only a-z, 0-9 and '-' are allowed`,
			`kind: "-" begins or ends with '-', which a DNS label must not`,
			`worker_ref.labels: key "" is empty`,
			`worker_ref.labels: value of "b" has 257 bytes, at most 256 are allowed`,
			`worker_ref.node: has 254 bytes, at most 253 are allowed`,
			`worker_ref.url: has the scheme "ftp"; known are http, https, grpc, grpcs, tcp`,
		}},
		{"name too long", func(s *Service) { s.Id = strings.Repeat("a", 64) }, []string{
			`id: has 64 bytes; a DNS label has at most 63`,
		}},
		{"node is no UTF-8", func(s *Service) { s.WorkerRef.Node = "\xff" }, []string{`worker_ref.node: is not valid UTF-8`}},
		{"label is no UTF-8", func(s *Service) { s.WorkerRef.Labels = map[string]string{"\xff": "\xff"} }, []string{
			`worker_ref.labels: key "\xff" is not valid UTF-8`,
			`worker_ref.labels: value of "\xff" is not valid UTF-8`,
		}},
		{"terminal codes", func(s *Service) {
			s.WorkerRef.Node, s.WorkerRef.Labels = "\x1b[2J", map[string]string{"a\n": "b\u009b"}
		}, []string{
			`worker_ref.labels: key "a\n" holds control characters`,
			`worker_ref.labels: value of "a\n" holds control characters`,
			`worker_ref.node: holds control characters`,
		}},
		{"key too long", func(s *Service) { s.WorkerRef.Labels = map[string]string{strings.Repeat("k", 100): ""} }, []string{
			`worker_ref.labels: key "` + strings.Repeat("k", 70) + `" has 100 bytes, at most 63 are allowed`,
		}},
		{"too many labels", func(s *Service) { s.WorkerRef.Labels = labels(MaxLabels+1, 10) }, []string{
			`worker_ref.labels: has 65 labels, at most 64 are allowed`,
		}},
		{"good parts, together too big", func(s *Service) { s.WorkerRef.Labels = labels(MaxLabels, MaxLabelValueBytes) }, []string{
			`worker_ref: makes a service of 20989 bytes, at most 16384 are allowed`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := goodService()
			tt.edit(s)
			var got []string
			for _, v := range s.Validate() {
				got = append(got, v.String())
			}
			require.Equal(t, tt.want, got)
		})
	}
	require.Len(t, (*Service)(nil).Validate(), 3)
}

func TestValidateURL_EveryForm_ReportsTheViolation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ url, want string }{
		{"http://oz-relayer-1:3000", ""},
		{"https://relay.example", ""},
		{"HTTPS://relay.example/base/path?x=1", ""},
		{"http://10.0.0.1:80", ""},
		{"http://[2001:db8::1]:3000", ""},
		{"grpc://relay:50051", ""},
		{"grpcs://relay:443", ""},
		{"tcp://relay:1", ""},
		{"tcp://relay:65535", ""},
		{"http://relay:", ""},
		{"http://" + strings.Repeat("a", MaxURLBytes-len("http://")), ""},

		{"", `is empty; it must be a URL such as "http://oz-relayer-1:3000"`},
		{"http://" + strings.Repeat("a", MaxURLBytes), "has 2055 bytes, at most 2048 are allowed"},
		{"http://relay\xff:1", "is not valid UTF-8"},
		{"http://relay\n:1", "holds control characters"},
		{"127.0.0.1:80", `has no scheme; begin with http://, https://, grpc://, grpcs:// or tcp://`},
		{"relay:3000", `has no scheme; begin with http://, https://, grpc://, grpcs:// or tcp://`},
		{"relay", `has no scheme; begin with http://, https://, grpc://, grpcs:// or tcp://`},
		{"//relay:3000", `has no scheme; begin with http://, https://, grpc://, grpcs:// or tcp://`},
		{"ftp://relay", `has the scheme "ftp"; known are http, https, grpc, grpcs, tcp`},
		{"file:///etc/passwd", `has the scheme "file"; known are http, https, grpc, grpcs, tcp`},
		{"a-rather-long-scheme-of-its-own://relay", `has the scheme "a-rather-long-scheme"; known are http, https, grpc, grpcs, tcp`},
		{"http://", "has no host"},
		{"http://:3000", "has no host"},
		{"http:relay", "has no host"},
		{"http:///path", "has no host"},
		{"http://relay:port", "does not parse as a URL"},
		{"http://re lay", "does not parse as a URL"},
		{"http://[::1", "does not parse as a URL"},
		{"http://user:secret@relay:%zz", "does not parse as a URL"},
		{"http://user:secret@relay", "holds a user name or password, which readers of the directory would see; use an auth header"},
		{"http://user@relay", "holds a user name or password, which readers of the directory would see; use an auth header"},
		{"tcp://relay", "has no port, which tcp:// needs"},
		{"grpc://relay:", "has no port, which grpc:// needs"},
		{"http://relay:0", "has the port 0; ports are 1 to 65535"},
		{"tcp://relay:65536", "has the port 65536; ports are 1 to 65535"},
		{"tcp://relay:99999999999999999999999", "has the port 99999999999999999999; ports are 1 to 65535"},
	} {
		t.Run(fmt.Sprintf("%.40q", tt.url), func(t *testing.T) {
			t.Parallel()
			s := goodService()
			s.WorkerRef.Url = tt.url
			s.Kind = "indexer"
			var want []Violation
			if tt.want != "" {
				want = []Violation{{"worker_ref.url", tt.want}}
			}
			got := s.Validate()
			require.Equal(t, want, got)
			require.NotContains(t, fmt.Sprint(got), "secret")
		})
	}
}

// A relay consumer appends paths of the relayer's HTTP API to the URL. Other kinds may have any URL.
func TestValidate_RelayersURL_IsOneThatConsumersAccept(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"http://relay:3000":             "",
		"HTTPS://relay/base/path":       "",
		"grpc://relay:1":                `has the scheme "grpc"; a relayer needs http:// or https://, because consumers call its HTTP API`,
		"grpcs://relay:1":               `has the scheme "grpcs"; a relayer needs http:// or https://, because consumers call its HTTP API`,
		"tcp://relay:1":                 `has the scheme "tcp"; a relayer needs http:// or https://, because consumers call its HTTP API`,
		"http://relay:3000/?key=secret": "has a query, which a relayer's URL must not have; set the health check's path at the coordinator",
		"http://relay:3000?":            "has a query, which a relayer's URL must not have; set the health check's path at the coordinator",
		"http://relay:3000/#secret":     "has a fragment, which a relayer's URL must not have; remove the part from # on",
		"ftp://relay":                   `has the scheme "ftp"; known are http, https, grpc, grpcs, tcp`,
	} {
		s := goodService()
		s.WorkerRef.Url = url
		s.Kind = KindRelayer
		var wanted []Violation
		if want != "" {
			wanted = []Violation{{"worker_ref.url", want}}
		}
		require.Equal(t, wanted, s.Validate(), url)
		if !strings.HasPrefix(url, "ftp:") {
			require.Empty(t, s.ValidateStored(), url)
			s.Kind = "indexer"
			require.Empty(t, s.Validate(), url)
		}
	}
}

func TestCheckDNSLabel_EveryForm_AcceptsOnlyLabels(t *testing.T) {
	t.Parallel()
	for label, ok := range map[string]bool{
		"a": true, "0": true, "a-b": true, "oz-relayer-1": true, "a--b": true, strings.Repeat("z", 63): true,
		"": false, "-": false, "-a": false, "a-": false, "A": false, "a.b": false, "a_b": false, "a b": false,
		"é": false, "a\x00": false, "a/b": false, strings.Repeat("z", 64): false,
	} {
		require.Equal(t, ok, CheckDNSLabel(label) == nil, "%q", label)
	}
}

// A message that passes Validate can be encoded, and its service reached.
func FuzzValidate(f *testing.F) {
	f.Add("oz-relayer-1", "relayer", "http://oz-relayer-1:3000", "host-1", "chain", "1")
	f.Add("", "-", "tcp://user:secret@:99999", "\xff", "", "\x1b")
	f.Fuzz(func(t *testing.T, id, kind, rawURL, node, key, value string) {
		s := &Service{Id: id, Kind: kind, WorkerRef: &WorkerRef{Url: rawURL, Node: node, Labels: map[string]string{key: value}}}
		vs := s.Validate()
		for _, v := range vs {
			require.NotEmpty(t, v.Field)
			require.NotEmpty(t, v.Description)
		}
		if len(vs) > 0 {
			return
		}
		data, err := proto.Marshal(s)
		require.NoError(t, err)
		require.LessOrEqual(t, len(data), MaxServiceBytes)
		var again Service
		require.NoError(t, proto.Unmarshal(data, &again))
		require.True(t, proto.Equal(s, &again))
		u, err := url.Parse(rawURL)
		require.NoError(t, err)
		require.NotEmpty(t, u.Hostname())
		require.Nil(t, u.User)
	})
}
