package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// words runs words.sh on a repository that tracks one file.
func words(t *testing.T, name, content string) (out string, err error) {
	t.Helper()
	script, err := filepath.Abs("words.sh")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	for _, args := range [][]string{{"init", "-q"}, {"add", name}} {
		git := exec.CommandContext(t.Context(), "git", args...)
		git.Dir = dir
		require.NoError(t, git.Run())
	}
	cmd := exec.CommandContext(t.Context(), script)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func TestWords_PlantedLine_IsRejectedWithItsPlace(t *testing.T) {
	t.Parallel()
	for line, name := range map[string]string{
		"// What waits is sent.":                                "a.go",
		"	// It ends. Nobody waits.":                            "a.go",
		"-- Who follows the chain.":                             "a.sql",
		"# Somebody waits.":                                     "a.sh",
		"// It begins anew.":                                    "a.go",
		"The cancelation is sent.":                              "a.md",
		"	said, err := answer()":                                "a.go",
		"log.Warn(\"round failed\", \"error\", err)":            "a.go",
		"func TestWhoGetsNothing(t *testing.T) {}":              "a_test.go",
		"func TestNothingIsSentTwice(t *testing.T) {":           "a_test.go",
		"// The lease ends, and nobody waits.":                  "a.go",
		"  // Remove entries, whoever owns them.":               "a.proto",
		"    -- Somebody else uses the key.":                    "b.sql",
		"    summary: Another process, or somebody else.":       "a.yml",
		"func TestAKeyIsStuck(t *testing.T) {}":                 "a_test.go",
		"func TestAnEndpoint_Lags(t *testing.T) {}":             "a_test.go",
		"func TestTheTracker(t *testing.T) {}":                  "a_test.go",
		"func TestSend_BeginsAnew(t *testing.T) {}":             "a_test.go",
		"func TestKey_UsedBySomebody_IsStuck(t *testing.T) {}":  "a_test.go",
		"func TestReorganisation(t *testing.T) {}":              "a_test.go",
		"func TestNode_Recogn" + "ised_IsUsed(t *testing.T) {}": "a_test.go",
		"func TestKeys_Summar" + "ise(t *testing.T) {}":         "a_test.go",
		"func TestLimit_IsHonoured(t *testing.T) {}":            "a_test.go",
		"func TestNode_Misbehav" + "iour(t *testing.T) {}":      "a_test.go",
	} {
		out, err := words(t, name, "package a\n"+line+"\n")
		require.Error(t, err, line)
		require.Contains(t, out, name+":2:", line)
	}
}

func TestWords_PlainLines_Pass(t *testing.T) {
	t.Parallel()
	out, err := words(t, "a.go", `package a

// Send sends again. The tracker decides what is sent, and who waits.
func Send() { log.Warn("round failed", "err", err) }
`)
	require.NoError(t, err, out)
	require.Empty(t, out)
	out, err = words(t, "a_test.go", `package a

func TestApply_AddressAdvertised_RaisesRise(t *testing.T) {}
func TestGeth_KilledOtherwise_IsPrecise(t *testing.T)     {}
func TestAttempts_Promise(t *testing.T)                   {}
`)
	require.NoError(t, err, out)
}
