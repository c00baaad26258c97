package foreman

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// quiet is how long a file must have been left alone before it is read, and missing before it is gone:
	// editors and copies write in several steps.
	quiet = 100 * time.Millisecond
	// maxFiles bounds the definition files of a folder: as many as services.
	maxFiles = rollcallv1.MaxServicesPerCall
)

// file is what is known of a definition file. It is immutable; a change makes a new one.
type file struct {
	// services are its last good version; known says that there ever was one.
	services []*rollcallv1.Service
	known    bool
	err      error     // why the version on disk is not the one in use
	since    time.Time // of err
	read     signature // of the version that services or err come from
	missing  time.Time // when it was first not there; zero if it is
}

// signature tells versions of a file apart.
type signature struct {
	size    int64
	changed time.Time
	mode    fs.FileMode
}

func signatureOf(info fs.FileInfo) signature {
	return signature{info.Size(), info.ModTime(), info.Mode()}
}

// scan looks at the definition files of the folder at path, which were known as before says. It returns what
// they are now, and whether some of them have to be looked at again after quiet. An error says that the folder
// could not be read, or not as a whole.
func scan(path string, before map[string]file, now time.Time) (after map[string]file, again bool, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return before, false, err
	}
	after = make(map[string]file, len(before))
	for _, e := range entries {
		format, ok := formatOf(e.Name())
		if !ok {
			continue
		}
		if len(after) == maxFiles {
			err = fmt.Errorf("more than %d definition files: %s and what sorts after it is not read", maxFiles, e.Name())
			break
		}
		f, unsettled := readFile(filepath.Join(path, e.Name()), format, before[e.Name()], now)
		again = again || unsettled
		if f != nil {
			after[e.Name()] = *f
		}
	}
	for name, f := range before {
		if _, there := after[name]; there {
			continue
		}
		if f.missing.IsZero() {
			f.missing = now
		}
		if now.Sub(f.missing) < quiet {
			after[name] = f
			again = true
		}
	}
	return after, again, err
}

// formatOf reports whether a file of that name holds definitions. Hidden ones are editors' and Kubernetes' own.
func formatOf(name string) (Format, bool) {
	if strings.HasPrefix(name, ".") {
		return 0, false
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json":
		return JSON, true
	case ".yaml", ".yml":
		return YAML, true
	}
	return 0, false
}

// readFile returns what a file is now, nil for what is no file, and whether it may be different in a moment.
func readFile(path string, format Format, before file, now time.Time) (after *file, unsettled bool) {
	before.missing = time.Time{}
	broken := func(err error, read signature) *file {
		if before.err == nil || before.err.Error() != err.Error() {
			before.err, before.since = err, now
		}
		before.read = read
		return &before
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Gone since it was listed, or a link to nothing.
		news := before.err == nil
		return broken(&Problem{What: "link to a file that does not exist", How: "mend or remove it"}, signature{}), news
	case err != nil:
		return broken(err, signature{}), false
	case !info.Mode().IsRegular():
		return nil, false
	}
	sig := signatureOf(info)
	if sig == before.read {
		return &before, false
	}
	if age := now.Sub(sig.changed); age >= 0 && age < quiet {
		return &before, true
	}
	if sig.size > maxDocument {
		return broken(&Problem{What: fmt.Sprintf("file of %d bytes", sig.size), How: fmt.Sprintf("split it: at most %d are read", maxDocument)}, sig), false
	}
	data, err := read(path)
	if err != nil {
		return broken(err, signature{}), false
	}
	if info, err := os.Stat(path); err != nil || signatureOf(info) != sig {
		return &before, true // it changed meanwhile
	}
	services, err := ParseDefinitions(data, format)
	if err != nil {
		return broken(err, sig), false
	}
	return &file{services: services, known: true, read: sig}, false
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxDocument+1))
}
