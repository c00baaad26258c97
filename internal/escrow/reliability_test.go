package escrow_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// row is a check of docs/escrow-reliability.md.
var row = regexp.MustCompile(`(?m)^\| (\d+) \| [^|]+ \| ([^|]+) \|$`)

// The page about a public benchmark names tests that exist, and counts right what they show.
func TestReliabilityPage_Checks_NameTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/escrow-reliability.md")
	require.NoError(t, err)
	page := string(text)
	all := tests(t, "events", "store", "watch", "publish", "instance", "admin", "crashtest", "../evm", "../platform/postgres", filepath.Join("..", "..", "cmd", "rollcall"))
	for _, test := range name.FindAllString(page, -1) {
		require.Contains(t, all, test, "the page names it")
	}
	var shown, measured, inapplicable int
	rows := row.FindAllStringSubmatch(page, -1)
	for i, r := range rows {
		require.Equal(t, fmt.Sprint(i+1), r[1])
		switch answer := r[2]; {
		case strings.HasPrefix(answer, "by the benchmark: "):
			bench, err := os.ReadFile("../../scripts/bench/rows.txt")
			require.NoError(t, err)
			require.Contains(t, string(bench), strings.Trim(strings.TrimPrefix(answer, "by the benchmark: "), `"`))
			measured++
		case strings.HasPrefix(answer, "not applicable, because "):
			inapplicable++
		default:
			require.True(t, name.MatchString(answer) || strings.HasPrefix(answer, "the same"), "check %s names no test", r[1])
			shown++
		}
	}
	require.Len(t, rows, 44)
	require.Contains(t, page, fmt.Sprintf("**Of 44: %d shown by a test, %d by the benchmark, %d not applicable.**", shown, measured, inapplicable))
}
