package signer

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// read returns the content of a file with a secret, without line ends at its end. It reports access by other users.
func (l *loader) read(where, name string, limit int64) ([]byte, bool) {
	// Stat comes first, because opening a pipe would wait for a writer.
	info, err := os.Stat(name)
	if err != nil {
		l.addf(where, "the file it names: %v", withoutPath(err))
		return nil, false
	}
	if !info.Mode().IsRegular() {
		l.addf(where, "%s is not a regular file", name)
		return nil, false
	}
	content, err := readLimited(name, limit+1)
	for len(content) > 0 && (content[len(content)-1] == '\n' || content[len(content)-1] == '\r') {
		content = content[:len(content)-1]
	}
	switch {
	case err != nil:
		l.addf(where, "%v", err)
	case int64(len(content)) > limit:
		l.addf(where, "%s is larger than %d bytes", name, limit)
	case len(content) == 0:
		l.addf(where, "%s is empty", name)
	case writable(info):
		l.addf(where, "%s may be written by others than its owner, who choose the key then; chmod go-w it", name)
	default:
		if readable(info) && !mounted(name) {
			l.log.Warn("secret file is readable by group or others", "file", name, "variable", where, "mode", info.Mode().Perm().String())
		}
		return content, true
	}
	return nil, false
}

// withoutPath returns the error without the path, because a name of no file may be the secret itself, in the wrong
// variable.
func withoutPath(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

func readLimited(name string, limit int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, limit))
}

// mounted reports whether Docker or Podman mounted the file: readable for all users of the container, and only there.
func mounted(name string) bool { return strings.HasPrefix(filepath.Clean(name), "/run/secrets/") }

// Windows has no such permission bits.

func writable(info fs.FileInfo) bool {
	return runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0
}

func readable(info fs.FileInfo) bool {
	return runtime.GOOS != "windows" && info.Mode().Perm()&0o044 != 0
}
