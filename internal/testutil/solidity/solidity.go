// Package solidity checks that committed artifacts of contracts are those of their sources, and writes them.
package solidity

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "compile the sources and write the artifacts")

// compilerVersion is the compiler of the artifacts. Others produce other code.
const compilerVersion = "0.8.30+commit.73712a01"

// hashFile has the hashes of the sources.
const hashFile = "sources.sha256"

// RequireArtifacts compiles the sources of contracts in the folder of the test's package if there is a compiler, and requires that the
// results are the artifacts there. It always requires that the sources are those that the artifacts were made from. Of each contract
// Name.sol is the source, and Name.bin and Name.abi.json are the artifacts. With -update it writes the artifacts.
//
// The artifacts are evm.bytecode.object and abi of the output of solc 0.8.30+commit.73712a01 with --standard-json and the settings
// {"optimizer": {"enabled": true, "runs": 200}, "evmVersion": "cancun", "metadata": {"bytecodeHash": "none", "appendCBOR": false}}. The
// compiler is the command in SOLC, such as a path or "npx solc", and without it the solc of the search path if that has this version.
func RequireArtifacts(t *testing.T, contracts ...string) {
	t.Helper()
	compiler := findCompiler(t)
	if *update {
		require.NotNil(t, compiler, "-update needs a compiler of version %s in SOLC", compilerVersion)
	}
	made := map[string]string{hashFile: hashes(t, contracts)}
	if compiler != nil {
		maps.Copy(made, compile(t, compiler, contracts))
	} else {
		t.Logf("no compiler of version %s: only the sources' hashes are compared", compilerVersion)
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if *update {
			require.NoError(t, os.WriteFile(name, []byte(made[name]), 0o644))
		}
		committed, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(committed), made[name], "%s is not of these sources: with -update and SOLC the test writes it", name)
	}
}

// findCompiler returns the command of a compiler of the right version: the one in SOLC, or else solc in the search path. It
// returns nil if there is none. The one in SOLC must have the right version.
func findCompiler(t *testing.T) []string {
	t.Helper()
	command := strings.Fields(os.Getenv("SOLC"))
	required := len(command) > 0
	if !required {
		path, err := exec.LookPath("solc")
		if err != nil {
			return nil
		}
		command = []string{path}
	}
	version := run(t, command, nil, "--version")
	if strings.Contains(version, compilerVersion) {
		return command
	}
	if required {
		t.Fatalf("the compiler in SOLC has version %q, not %s", version, compilerVersion)
	}
	return nil
}

func run(t *testing.T, command []string, input []byte, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(slices.Clone(command[1:]), args...)...)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	require.NoError(t, err, "%s %v", command, args)
	return string(out)
}

func hashes(t *testing.T, contracts []string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range contracts {
		source, err := os.ReadFile(name + ".sol")
		require.NoError(t, err)
		fmt.Fprintf(&text, "%x  %s.sol\n", sha256.Sum256(source), name)
	}
	return text.String()
}

// compile returns the content of each artifact by file name.
func compile(t *testing.T, compiler, contracts []string) map[string]string {
	t.Helper()
	type source struct {
		Content string `json:"content"`
	}
	sources := map[string]source{}
	for _, name := range contracts {
		text, err := os.ReadFile(name + ".sol")
		require.NoError(t, err)
		sources[name+".sol"] = source{Content: string(text)}
	}
	input, err := json.Marshal(map[string]any{
		"language": "Solidity", "sources": sources,
		"settings": map[string]any{
			"optimizer": map[string]any{"enabled": true, "runs": 200}, "evmVersion": "cancun",
			"metadata":        map[string]any{"bytecodeHash": "none", "appendCBOR": false},
			"outputSelection": map[string]any{"*": map[string]any{"*": []string{"abi", "evm.bytecode.object"}}},
		},
	})
	require.NoError(t, err)
	text := run(t, compiler, input, "--standard-json")
	start := strings.Index(text, "{") // solc's npm package prints a line before
	require.GreaterOrEqual(t, start, 0, "%s", text)
	var out struct {
		Errors []struct {
			FormattedMessage string `json:"formattedMessage"`
		} `json:"errors"`
		Contracts map[string]map[string]struct {
			ABI []json.RawMessage `json:"abi"`
			EVM struct {
				Bytecode struct {
					Object string `json:"object"`
				} `json:"bytecode"`
			} `json:"evm"`
		} `json:"contracts"`
	}
	require.NoError(t, json.Unmarshal([]byte(text[start:]), &out))
	require.Empty(t, out.Errors)
	files := map[string]string{}
	for _, name := range contracts {
		contract := out.Contracts[name+".sol"][name]
		require.NotEmpty(t, contract.EVM.Bytecode.Object)
		files[name+".bin"] = contract.EVM.Bytecode.Object + "\n"
		lines := make([]string, len(contract.ABI))
		for i, line := range contract.ABI {
			lines[i] = "  " + string(line)
		}
		files[name+".abi.json"] = "[\n" + strings.Join(lines, ",\n") + "\n]\n"
	}
	return files
}
