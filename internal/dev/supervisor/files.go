package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
)

const portsFile = "ports.json"

// writeJSON replaces a file atomically, readable by its owner only, because it holds secrets.
func writeJSON(path string, v any) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return replace(path, append(content, '\n'))
}

func replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

// lockAlone takes the exclusive lock, waiting for it at most patience.
func lockAlone(ctx context.Context, path string, patience time.Duration) (*os.File, error) {
	for limit := time.After(patience); ; {
		f, err := devinfo.TryLock(path, syscall.LOCK_EX)
		if !errors.Is(err, devinfo.ErrLocked) {
			return f, err
		}
		select {
		case <-limit:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
