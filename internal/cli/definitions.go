package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/rollcall-dev/rollcall/internal/discovery/foreman"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// readDefinitions reads a file of services, or standard input for "-": JSON by its name, else YAML, which JSON
// nearly always is too.
func readDefinitions(path string, stdin io.Reader) ([]*rollcallv1.Service, error) {
	name, in, format := path, stdin, foreman.YAML
	switch {
	case path == "-":
		name = "standard input"
	case filepath.Ext(path) == ".json":
		format = foreman.JSON
		fallthrough
	default:
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	// One byte more than a document may have, so that a larger one is refused and not cut.
	content, err := io.ReadAll(io.LimitReader(in, rollcallv1.MaxBytesPerCall+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	services, err := foreman.ParseDefinitions(content, format)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return services, nil
}
