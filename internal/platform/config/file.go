package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
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
	doc, err := parser.ParseBytes(content, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		where, what := path, err.Error()
		if syntax, ok := errors.AsType[yaml.Error](err); ok {
			where = fmt.Sprintf("%s:%d", path, syntax.GetToken().Position.Line)
			what = syntax.GetMessage()
		}
		return fail(where, "", "is not valid YAML: %s", what)
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
	for _, d := range doc.Docs {
		if d.Body == nil || d.Body.Type() == ast.NullType || d.Body.Type() == ast.CommentType {
			continue
		}
		entries, ok := mapping(d.Body)
		if !ok {
			return fail(fmt.Sprintf("%s:%d", path, line(d.Body)), "", "must hold a mapping from settings to values")
		}
		for _, entry := range entries {
			name := entry.Key.GetToken().Value
			where := fmt.Sprintf("%s:%d", path, line(entry.Key))
			flag := byName[name]
			text, err := text(entry.Value, flag)
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

func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

func line(n ast.Node) int { return n.GetToken().Position.Line }

// text returns the value as the text of the flag.
func text(n ast.Node, flag *kong.Flag) (string, error) {
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
		if entries, ok := mapping(n); ok {
			var items []string
			for _, entry := range entries {
				s, err := scalar(entry.Value)
				if err != nil {
					return "", err
				}
				items = append(items, entry.Key.GetToken().Value+"="+s)
			}
			return kong.JoinEscaped(items, flag.Tag.MapSep), nil
		}
	}
	return scalar(n)
}

func isNull(n ast.Node) bool { return n == nil || n.Type() == ast.NullType }

// list returns a list as the text of the flag. The list may also be written in that form.
func list(n ast.Node, flag *kong.Flag) (string, error) {
	if isNull(n) {
		return "", nil
	}
	sequence, ok := n.(*ast.SequenceNode)
	if !ok {
		return scalar(n)
	}
	var items []string
	for _, item := range sequence.Values {
		s, err := scalar(item)
		if err != nil {
			return "", err
		}
		items = append(items, s)
	}
	return kong.JoinEscaped(items, flag.Tag.Sep), nil
}

func scalar(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return strings.TrimSpace(n.GetToken().Value), nil
	}
	return "", fmt.Errorf("must be a plain value (it is: %s)", strings.ToLower(n.Type().String()))
}
