package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

const (
	configFlag = "config"
	// maxFileBytes limits the settings file; a real one has less than a tenth.
	maxFileBytes = 64 << 10
)

// file is a settings file, with each value as the text of a flag.
type file struct{ values map[string]fileValue }

type fileValue struct {
	text  string
	where string // file and line
}

// readFile reads a YAML mapping from flag names to scalars, lists and mappings of scalars. The values stay text, so
// that flags and the file accept the same values.
func readFile(path string, flags []*kong.Flag) (*file, []Problem) {
	f := &file{values: map[string]fileValue{}}
	fail := func(where, fix, format string, args ...any) (*file, []Problem) {
		return f, []Problem{{Where: where, What: fmt.Sprintf(format, args...), Fix: fix}}
	}
	content, err := readBounded(path)
	if err != nil {
		return fail(path, "name a readable file with --config or ROLLCALL_CONFIG", "%v", err)
	}
	byName := map[string]*kong.Flag{}
	var known []string
	for _, flag := range flags {
		if flag.Name != configFlag && flag.Name != "help" {
			byName[flag.Name] = flag
			known = append(known, flag.Name)
		}
	}
	var problems []Problem
	for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var doc yaml.Node
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			where, what := path, strings.TrimPrefix(err.Error(), "yaml: ")
			if m := yamlLine.FindStringSubmatch(what); m != nil {
				where, what = path+":"+m[1], m[2]
			}
			return fail(where, "", "is not valid YAML: %s", what)
		}
		body := doc.Content[0]
		if isNull(body) {
			continue
		}
		if body.Kind != yaml.MappingNode {
			return fail(fmt.Sprintf("%s:%d", path, body.Line), "", "must hold a mapping from settings to values")
		}
		for key, value := range entries(body) {
			name, where := key.Value, fmt.Sprintf("%s:%d", path, key.Line)
			flag := byName[name]
			text, err := text(value, flag)
			_, again := f.values[name]
			switch {
			case flag == nil:
				problems = append(problems, Problem{where, fmt.Sprintf("%q is not a setting", name), didYouMean(name, known)})
			case again:
				problems = append(problems, Problem{where, fmt.Sprintf("%q is given twice", name), "remove one"})
			case err != nil:
				problems = append(problems, Problem{where + ": " + name, err.Error(), ""})
			case text != "":
				f.values[name] = fileValue{text: text, where: where}
			}
		}
	}
	return f, problems
}

func readBounded(path string) ([]byte, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("is larger than %d bytes", maxFileBytes)
	}
	return content, err
}

// yamlLine matches the library's errors that name a line.
var yamlLine = regexp.MustCompile(`^line (\d+): (.*)$`)

// entries returns the keys and values of a mapping, in the order of the file.
func entries(mapping *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			if !yield(mapping.Content[i], mapping.Content[i+1]) {
				return
			}
		}
	}
}

// text is the value as the flag would be given it.
func text(n *yaml.Node, flag *kong.Flag) (string, error) {
	if flag != nil && flag.IsSlice() {
		joined, err := list(n, flag)
		if err == nil && joined == "" { // an empty list may mean none, but would mean all where that is the default
			err = errors.New("is an empty list: leave it out")
		}
		return joined, err
	}
	if isNull(n) {
		return "", nil
	}
	if flag != nil && flag.IsMap() {
		if n.Kind == yaml.MappingNode {
			var items []string
			seen := map[string]bool{}
			for key, value := range entries(n) {
				s, err := scalar(value)
				if err != nil {
					return "", err
				}
				if seen[key.Value] {
					return "", fmt.Errorf("%q is given twice", key.Value)
				}
				seen[key.Value] = true
				items = append(items, key.Value+"="+s)
			}
			return kong.JoinEscaped(items, flag.Tag.MapSep), nil
		}
	}
	return scalar(n)
}

// isNull reports whether a value is omitted. A value that begins with & or ! is none: YAML reads an anchor or a tag, where the file may
// have a password.
func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" && n.Anchor == "" && n.Style&yaml.TaggedStyle == 0
}

// list is a list's text, which may also be written as the flag would be given it.
func list(n *yaml.Node, flag *kong.Flag) (string, error) {
	if isNull(n) {
		return "", nil
	}
	if n.Kind != yaml.SequenceNode {
		return scalar(n)
	}
	var items []string
	for _, item := range n.Content {
		s, err := scalar(item)
		if err != nil {
			return "", err
		}
		items = append(items, s)
	}
	return kong.JoinEscaped(items, flag.Tag.Sep), nil
}

// kinds are the names of nodes that are no plain values.
var kinds = map[yaml.Kind]string{yaml.MappingNode: "mapping", yaml.SequenceNode: "sequence", yaml.AliasNode: "alias"}

func scalar(n *yaml.Node) (string, error) {
	switch {
	case n.Anchor != "":
		return "", errors.New("must be a plain value (it is: anchor); put a value that begins with & in quotes")
	case n.Style&yaml.TaggedStyle != 0:
		return "", errors.New("must be a plain value (it is: tag); put a value that begins with ! in quotes")
	case n.Kind != yaml.ScalarNode:
		return "", fmt.Errorf("must be a plain value (it is: %s)", kinds[n.Kind])
	case isNull(n):
		return "", errors.New("must be a plain value (it is: null)")
	}
	return n.Value, nil
}
