package scripts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A failed test runs a second time, alone. A test that passes then is named as unsteady, and one that fails twice fails the run.
func TestRetest_FailedTest_RunsASecondTime(t *testing.T) {
	t.Parallel()
	again := func(run string) string {
		return "make test PACKAGES=example/b RUN=" + run + " GO_TEST_FLAGS=-p 1 -parallel 1"
	}
	for name, tc := range map[string]struct {
		first, second string // output of the tests; "" passes
		code          int
		calls         []string
		want          []string // last lines
	}{
		"all pass": {calls: []string{"make test"}},
		"one fails once": {
			first: "ok  \\texample/a\\t1s\\n--- FAIL: TestOne (1s)\\nFAIL\\nFAIL\\texample/b\\t2s\\nFAIL\\n",
			calls: []string{"make test", again("^(TestOne)")}, want: []string{"unsteady: example/b TestOne"},
		},
		"one fails twice": {
			first:  "--- FAIL: TestOne (1s)\\n--- FAIL: TestTwo (1s)\\nFAIL\\texample/b\\t2s\\n",
			second: "--- FAIL: TestOne (1s)\\nFAIL\\texample/b\\t2s\\n",
			code:   1, calls: []string{"make test", again("^(TestOne|TestTwo)")},
			want: []string{"unsteady: example/b TestTwo", "failed twice: example/b TestOne"},
		},
		"another one fails": {
			first:  "--- FAIL: TestOne (1s)\\nFAIL\\texample/b\\t2s\\n",
			second: "--- FAIL: TestTwo (1s)\\nFAIL\\texample/b\\t2s\\n",
			calls:  []string{"make test", again("^(TestOne)")}, want: []string{"unsteady: example/b TestOne", "unsteady: example/b TestTwo"},
		},
		"a package does not compile": {
			first: "FAIL\\texample/b [build failed]\\n", second: "FAIL\\texample/b [build failed]\\n",
			code: 1, calls: []string{"make test", again(".")}, want: []string{"failed twice: example/b"},
		},
		"out of time, and then a test": {
			first:  "--- FAIL: TestOne (1s)\\npanic: test timed out after 40m0s\\nFAIL\\texample/b\\t2s\\n",
			second: "--- FAIL: TestTwo (1s)\\nFAIL\\texample/b\\t2s\\n",
			code:   1, calls: []string{"make test", again(".")},
			want: []string{"unsteady: example/b", "unsteady: example/b TestOne", "failed twice: example/b TestTwo"},
		},
		"a data race": {
			first: "WARNING: DATA RACE\\n--- FAIL: TestOne (1s)\\nFAIL\\texample/b\\t2s\\n",
			code:  1, calls: []string{"make test"}, want: []string{"race or panic: example/b"},
		},
		"a nil pointer": {
			first: "--- FAIL: TestOne (1s)\\npanic: runtime error: invalid memory address\\nFAIL\\texample/b\\t2s\\n",
			code:  1, calls: []string{"make test"}, want: []string{"race or panic: example/b"},
		},
		"a data race the second time": {
			first:  "--- FAIL: TestOne (1s)\\nFAIL\\texample/b\\t2s\\n",
			second: "WARNING: DATA RACE\\n--- FAIL: TestTwo (1s)\\nFAIL\\texample/b\\t2s\\n",
			code:   1, calls: []string{"make test", again("^(TestOne)")},
			want: []string{"unsteady: example/b TestOne", "unsteady: example/b TestTwo", "failed twice: example/b FAULT"},
		},
		"what runs before the tests fails": {first: "setup: no Go\\n", code: 1, calls: []string{"make test"}, want: []string{"setup: no Go"}},
		"it fails before the second tests": {
			first: "--- FAIL: TestOne (1s)\\nFAIL\\texample/b\\t2s\\n", second: "setup: no Go\\n",
			code: 1, calls: []string{"make test", again("^(TestOne)")}, want: []string{"setup: no Go"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stand := `
case $# in 1) text=$FIRST ;; *) text=$SECOND ;; esac
printf -- "$text"
[ -z "$text" ]`
			got := script(t, programs{"make": stand}, []string{"FIRST=" + tc.first, "SECOND=" + tc.second}, "retest.sh")
			require.Equal(t, tc.code, got.code, got.stdout+got.stderr)
			require.Equal(t, tc.calls, got.calls)
			lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
			require.GreaterOrEqual(t, len(lines), len(tc.want))
			if tc.want != nil {
				require.Equal(t, tc.want, lines[len(lines)-len(tc.want):])
			}
		})
	}
}
