package foreman

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// maxDocument is the maximum size of a definition file or an advertisement's body, in bytes.
const maxDocument = rollcallv1.MaxBytesPerCall

// Format is the format of a document.
type Format int

// JSON and YAML are the formats of definitions.
const (
	JSON Format = iota
	YAML
)

// Problem describes a fault, its location and its remedy. Its text is for people, in one line.
type Problem struct {
	What  string `json:"what"`
	Where string `json:"where"`
	How   string `json:"how"`
	// Violations are all faults of the services of a document, by field.
	Violations []string `json:"violations,omitempty"`
}

func (p *Problem) Error() string {
	text := p.What
	if p.Where != "" {
		text += " in " + p.Where
	}
	if len(p.Violations) > 0 {
		text += ": " + strings.Join(p.Violations[:min(3, len(p.Violations))], "; ")
	}
	return text + "; " + p.How
}

// definition is a service in the form of files and advertisements.
type definition struct {
	ID        string     `json:"id" yaml:"id"`
	Kind      string     `json:"kind" yaml:"kind"`
	WorkerRef *workerRef `json:"worker_ref,omitempty" yaml:"worker_ref"`
}

type workerRef struct {
	URL    string            `json:"url" yaml:"url"`
	Node   string            `json:"node,omitempty" yaml:"node"`
	Labels map[string]string `json:"labels,omitempty" yaml:"labels"`
}

func (d definition) service() *rollcallv1.Service {
	s := &rollcallv1.Service{Id: d.ID, Kind: d.Kind}
	if r := d.WorkerRef; r != nil {
		s.WorkerRef = &rollcallv1.WorkerRef{Url: r.URL, Node: r.Node, Labels: r.Labels}
	}
	return s
}

func definitionOf(s *rollcallv1.Service) definition {
	d := definition{ID: s.GetId(), Kind: s.GetKind()}
	if r := s.GetWorkerRef(); r != nil {
		d.WorkerRef = &workerRef{URL: r.GetUrl(), Node: r.GetNode(), Labels: r.GetLabels()}
	}
	return d
}

// document is one service, or a list of services under the key services. A list at the top level is decoded
// separately.
type document struct {
	definition `yaml:",inline"`
	Services   *[]definition `json:"services" yaml:"services"`
}

const shapes = `write one service ({id, kind, worker_ref: {url}}), a list of them, or {services: [...]}`

// ParseDefinitions decodes a document with one service, a list, or {services: [...]}. It refuses unknown fields, and a
// document with any fault, as a whole. The error is a *Problem.
func ParseDefinitions(data []byte, format Format) ([]*rollcallv1.Service, error) {
	if len(data) > maxDocument {
		return nil, &Problem{What: fmt.Sprintf("document of %d bytes", len(data)), How: fmt.Sprintf("split it: at most %d are read", maxDocument)}
	}
	if !utf8.Valid(data) {
		return nil, &Problem{What: "bytes that are not UTF-8", How: "save it as UTF-8"}
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, &Problem{What: "empty document", How: "to define nothing, remove it or write services: []"}
	}
	decode := decodeJSON
	if format == YAML {
		decode = decodeYAML
	}
	definitions, err := decode(data)
	if err != nil {
		return nil, err
	}
	if n := len(definitions); n > rollcallv1.MaxServicesPerCall {
		return nil, tooMany(n)
	}
	services := make([]*rollcallv1.Service, len(definitions))
	for i, d := range definitions {
		services[i] = d.service()
	}
	return services, check(services)
}

func tooMany(services int) *Problem {
	return &Problem{
		What: fmt.Sprintf("%d services", services),
		How:  fmt.Sprintf("split them across several gateway ids: at most %d fit in one", rollcallv1.MaxServicesPerCall),
	}
}

// check returns all faults of services as one problem.
func check(services []*rollcallv1.Service) error {
	p := &Problem{What: "invalid services"}
	seen := map[string]int{}
	for i, s := range services {
		add := func(field, description string) {
			where := fmt.Sprintf("services[%d].%s", i, field)
			if p.Where == "" {
				p.Where, p.How = where, field+" "+description
			}
			p.Violations = append(p.Violations, where+": "+description)
		}
		for _, v := range s.Validate() {
			add(v.Field, v.Description)
		}
		if n := proto.Size(s); n > rollcallv1.MaxServiceBytes {
			add("worker_ref", fmt.Sprintf("makes a service of %d bytes, at most %d are allowed", n, rollcallv1.MaxServiceBytes))
		}
		if first, twice := seen[s.GetId()]; twice {
			add("id", fmt.Sprintf("%q is that of services[%d] already", s.GetId(), first))
		} else {
			seen[s.GetId()] = i
		}
	}
	if p.Violations == nil {
		return nil
	}
	return p
}

func (d document) definitions() ([]definition, error) {
	alone := d.definition
	switch {
	case d.Services == nil && alone.ID == "" && alone.Kind == "" && alone.WorkerRef == nil:
		return nil, &Problem{What: "no service in the document", How: shapes}
	case d.Services == nil:
		return []definition{alone}, nil
	case alone.ID != "" || alone.Kind != "" || alone.WorkerRef != nil:
		return nil, &Problem{What: "a service beside services: [...]", How: shapes}
	}
	return *d.Services, nil
}

func decodeJSON(data []byte) ([]definition, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var d document
	var err error
	if isList := bytes.TrimLeft(data, " \t\r\n")[0] == '['; isList {
		d.Services = &[]definition{}
		err = decoder.Decode(d.Services)
	} else {
		err = decoder.Decode(&d)
	}
	if err == nil {
		if _, trailing := decoder.Token(); !errors.Is(trailing, io.EOF) {
			err = errors.New("more follows after the first value")
		}
	}
	if err != nil {
		return nil, &Problem{
			What: "malformed JSON: " + oneLine(strings.TrimPrefix(err.Error(), "json: ")), Where: lineOf(data, decoder.InputOffset()), How: shapes,
		}
	}
	return d.definitions()
}

func lineOf(data []byte, offset int64) string {
	return fmt.Sprintf("line %d", 1+bytes.Count(data[:min(int(offset), len(data))], []byte("\n")))
}

// decodeYAML reads one document. Its text comes from other people, so anchors and large mappings are refused before they are decoded.
func decodeYAML(data []byte) ([]definition, error) {
	var tree yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&tree); errors.Is(err, io.EOF) { // comments only
		return document{}.definitions()
	} else if err != nil {
		return nil, yamlProblem(err)
	}
	if err := plain(&tree); err != nil {
		return nil, err
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, &Problem{What: "more than one document", How: "keep one a file; a document can hold a list"}
	}
	// Only a decoder can refuse unknown fields, so the text is read a second time.
	decoder = yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var d document
	var err error
	if tree.Content[0].Kind == yaml.SequenceNode {
		d.Services = &[]definition{}
		err = decoder.Decode(d.Services)
	} else {
		err = decoder.Decode(&d)
	}
	if err != nil {
		return nil, yamlProblem(err)
	}
	return d.definitions()
}

// plain refuses features that definitions do not need and that make a small document expensive: anchors used often,
// mappings of many keys, which are compared pairwise, and long lists, whose every wrong item would be an error.
func plain(n *yaml.Node) error {
	const maxKeys = 2 * rollcallv1.MaxLabels
	where := fmt.Sprintf("line %d", n.Line)
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return &Problem{What: "an anchor or alias", Where: where, How: "write the value out"}
	case n.Kind == yaml.SequenceNode && len(n.Content) > rollcallv1.MaxServicesPerCall:
		return tooMany(len(n.Content))
	case n.Kind == yaml.MappingNode && len(n.Content)/2 > maxKeys:
		return &Problem{What: fmt.Sprintf("a mapping of %d keys", len(n.Content)/2), Where: where, How: shapes}
	}
	for _, c := range n.Content {
		if err := plain(c); err != nil {
			return err
		}
	}
	return nil
}

var unknownField = regexp.MustCompile(`field (.+) not found in type foreman\.\w+`)

func yamlProblem(err error) *Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if typed, ok := errors.AsType[*yaml.TypeError](err); ok && len(typed.Errors) > 0 {
		text = typed.Errors[0]
	}
	text = unknownField.ReplaceAllString(text, "unknown field $1")
	p := &Problem{What: "malformed YAML: " + oneLine(text), How: shapes}
	if line, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(line, "line ") {
		p.What, p.Where = "malformed YAML: "+oneLine(rest), line
	}
	return p
}

// oneLine makes a library's error text printable, because it may quote parts of an untrusted document.
func oneLine(s string) string {
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}
