package events

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"go.yaml.in/yaml/v3"
)

// maxFile is the maximum size of an event file or of an ABI, in bytes.
const maxFile = 4 << 20

//go:embed builtin.yaml builtin.abi.json
var builtin embed.FS

// BuiltIn returns the built-in set.
func BuiltIn() *Set {
	s, err := load(builtin, "builtin.yaml")
	if err != nil {
		panic(err) // a test loads it
	}
	return s
}

// Load reads a set from a YAML file and the ABI files that it names, relative to its folder. An ABI file has an interface as compilers
// write it: a list, or an object with the list in "abi". It returns all problems, joined, each with the file and the remedy.
func Load(path string) (*Set, error) {
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	defer folder.Close()
	s, err := load(folder.FS(), filepath.Base(path))
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return s, nil
}

// document is the form of an event file.
type document struct {
	Factory section `yaml:"factory"`
	Escrow  section `yaml:"escrow"`
}

type section struct {
	ABI    []string     `yaml:"abi"`
	Events []definition `yaml:"events"`
}

type definition struct {
	Event  string `yaml:"event"`
	Escrow string `yaml:"escrow"`
	Status State  `yaml:"status"`
	Payer  string `yaml:"payer"`
	Payee  string `yaml:"payee"`
	Amount string `yaml:"amount"`
}

func load(folder fs.FS, name string) (*Set, error) {
	content, err := read(folder, name)
	if err != nil {
		return nil, err
	}
	var doc document
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := decoder.Decode(&doc); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: has more than one document: write one", name)
	}
	var all []*Event
	var errs []error
	for role, s := range map[Role]section{Factory: doc.Factory, Escrow: doc.Escrow} {
		known, err := s.layouts(folder)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(s.Events) == 0 {
			errs = append(errs, fmt.Errorf("%s: %s.events is empty: name at least one event", name, role))
		}
		for i, d := range s.Events {
			found, err := d.events(role, known)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %s.events[%d]: %w", name, role, i, err))
			}
			for _, e := range found {
				if j := slices.IndexFunc(all, e.collides); j >= 0 {
					errs = append(errs, fmt.Errorf("%s: %s.events[%d]: %s and %s cannot be told apart: both have %d indexed arguments", name, role, i, e, all[j], len(e.indexed)))
					continue
				}
				all = append(all, e)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return newSet(all), nil
}

func read(folder fs.FS, name string) ([]byte, error) {
	f, err := folder.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s: is larger than %d bytes", name, maxFile)
	}
	return content, nil
}

// layouts returns the events of the section's ABI files, without repetitions.
func (s section) layouts(folder fs.FS) (all []abi.Event, err error) {
	for _, name := range s.ABI {
		content, err := read(folder, name)
		if err != nil {
			return nil, err
		}
		var artifact struct {
			ABI json.RawMessage `json:"abi"`
		}
		if json.Unmarshal(content, &artifact) == nil && artifact.ABI != nil {
			content = artifact.ABI
		}
		parsed, err := abi.JSON(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("%s: is no ABI: %w", name, err)
		}
		for _, e := range parsed.Events {
			if !e.Anonymous && !slices.ContainsFunc(all, func(o abi.Event) bool { return o.String() == e.String() }) {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(a, b abi.Event) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// events returns an Event for each layout of the definition's signature.
func (d definition) events(role Role, known []abi.Event) (found []*Event, err error) {
	signature := strings.ReplaceAll(d.Event, " ", "")
	var errs []error
	for _, layout := range known {
		if layout.Sig != signature {
			continue
		}
		e := &Event{
			Role: role, Name: layout.RawName, Signature: layout.Sig, Topic: layout.ID, Escrow: d.Escrow, State: d.Status,
			Payer: d.Payer, Payee: d.Payee, Amount: d.Amount, inputs: layout.Inputs, plain: layout.Inputs.NonIndexed(),
		}
		for _, in := range layout.Inputs {
			if in.Indexed {
				e.indexed = append(e.indexed, in)
			}
		}
		errs = append(errs, e.validate())
		found = append(found, e)
	}
	if len(found) == 0 {
		signatures := make([]string, len(known))
		for i, e := range known {
			signatures[i] = e.Sig
		}
		return nil, fmt.Errorf("no ABI of this section has the event %q: write its full signature; they have %s", d.Event, strings.Join(slices.Compact(signatures), ", "))
	}
	return found, errors.Join(errs...)
}

// collides reports whether a log cannot tell two events apart.
func (e *Event) collides(o *Event) bool {
	return e.Role == o.Role && e.Topic == o.Topic && len(e.indexed) == len(o.indexed)
}

// validate returns all problems of the facts that the definition names, joined.
func (e *Event) validate() error {
	var errs []error
	names := map[string]bool{}
	for _, in := range e.inputs {
		if names[in.Name] {
			errs = append(errs, fmt.Errorf("%s: two arguments have the name %q: messages need one for each", e.Signature, in.Name))
		}
		names[in.Name] = true
		if err := supported(in.Type); err != nil {
			errs = append(errs, fmt.Errorf("%s: argument %q: %w", e.Signature, in.Name, err))
		}
	}
	argument := func(fact, name string, kind byte, is string) {
		if name == "" {
			return
		}
		i := slices.IndexFunc(e.inputs, func(in abi.Argument) bool { return in.Name == name })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("%s: it has no argument %q for %s", e.Signature, name, fact))
		case e.inputs[i].Type.T != kind:
			errs = append(errs, fmt.Errorf("%s: the argument %q for %s is a %s, not %s", e.Signature, name, fact, e.inputs[i].Type, is))
		}
	}
	argument("escrow", e.Escrow, abi.AddressTy, "an address")
	argument("payer", e.Payer, abi.AddressTy, "an address")
	argument("payee", e.Payee, abi.AddressTy, "an address")
	argument("amount", e.Amount, abi.UintTy, "an unsigned integer")
	switch {
	case e.Role == Factory && e.Escrow == "":
		errs = append(errs, fmt.Errorf("%s: name the argument that holds the escrow's address in escrow", e.Signature))
	case e.Role == Escrow && e.Escrow != "":
		errs = append(errs, fmt.Errorf("%s: an event of an escrow belongs to the escrow that emits it: remove escrow", e.Signature))
	}
	switch e.State {
	case "", Active, Released, Refunded:
	default:
		errs = append(errs, fmt.Errorf("%s: the status %q is none of %s, %s and %s", e.Signature, e.State, Active, Released, Refunded))
	}
	return errors.Join(errs...)
}
