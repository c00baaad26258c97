package escrow_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tests returns the comments of the tests of the packages by their names, such as store.TestCommit.
func tests(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		require.NoError(t, err)
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			require.NoError(t, err)
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
					all[filepath.Base(folder)+"."+f.Name.Name] = f.Doc.Text()
				}
			}
		}
	}
	return all
}

var (
	number = regexp.MustCompile(`^//\tE(\d+) `)
	name   = regexp.MustCompile(`\b[a-z]+\.Test\w+`)
	marks  = regexp.MustCompile(`\bE\d+\b`)
)

// Each invariant names its tests, and each of these names the invariant.
func TestInvariants_Numbers_AreThoseOfTheTests(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	named := map[string][]string{} // invariants by test
	current := ""
	shown := map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		if m := number.FindStringSubmatch(line); m != nil {
			current = "E" + m[1]
			shown[current] = false
		}
		for _, test := range name.FindAllString(line, -1) {
			require.NotEmpty(t, current)
			named[test], shown[current] = append(named[test], current), true
		}
	}
	require.NotEmpty(t, shown)
	for invariant, by := range shown {
		require.True(t, by, "%s has no test", invariant)
	}
	all := tests(t, "events", "store", "watch", "publish", "instance", "crashtest", filepath.Join("..", "..", "cmd", "rollcall"))
	for test := range named {
		require.Contains(t, all, test, "doc.go names it")
	}
	for test, comment := range all {
		require.ElementsMatch(t, named[test], marks.FindAllString(comment, -1), "%s: doc.go and the comment of the test name different invariants", test)
	}
}
