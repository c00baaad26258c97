package pgserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that the server runs as.
type account struct {
	name     string
	uid, gid uint32
	other    bool // differs from the user of this process
}

// runner returns the account for a server that this process starts.
func runner() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "uid " + strconv.Itoa(os.Geteuid()), uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("uid of %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("gid of %s: %w", name, err)
		}
		return account{name: name, uid: uint32(uid), gid: uint32(gid), other: true}, nil
	}
	return account{}, errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody: create one, or run this as another user")
}

// dress makes a command run as the account.
func (a account) dress(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	if a.other {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// own makes the account the owner of a folder or file.
func (a account) own(path string) error {
	if !a.other {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// enters checks whether the account can work in a folder, by starting one of PostgreSQL's programs there.
func (a account) enters(ctx context.Context, i installation, dir string) error {
	cmd := exec.CommandContext(ctx, i.program("postgres"), "--version")
	cmd.Dir = dir
	cmd.SysProcAttr = a.dress(&syscall.SysProcAttr{})
	err := cmd.Run()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return &FolderError{Dir: dir, User: a.name, Blocked: a.blocked(dir), Err: err}
}

// blocked returns the uppermost parent whose mode excludes the account; it ignores access lists.
func (a account) blocked(dir string) (closed string) {
	for path := dir; ; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil {
			execute := fs.FileMode(0o001)
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				switch {
				case stat.Uid == a.uid:
					execute = 0o100
				case stat.Gid == a.gid:
					execute = 0o010
				}
			}
			if info.Mode()&execute == 0 {
				closed = path
			}
		}
		if path == filepath.Dir(path) {
			return closed
		}
	}
}

// Folder returns a folder for a server's files: preferred, created if missing. If the server's user cannot access that,
// it returns a folder below /var/tmp, whose name is derived from preferred. The caller removes that one after use. bin
// is as in Config.
func Folder(ctx context.Context, preferred, bin string) (string, error) {
	dir, err := filepath.Abs(preferred)
	if err != nil {
		return "", err
	}
	who, err := runner()
	if err != nil {
		return "", err
	}
	programs, err := choose(ctx, bin, 0)
	if err != nil {
		return "", err
	}
	if err := prepare(ctx, who, programs, dir); err == nil || !who.other {
		return dir, err
	}
	_ = os.Remove(dir) // it is empty, or another user's
	base := "/var/tmp" // survives a restart of the machine, unlike /tmp
	if _, err := os.Stat(base); err != nil {
		base = os.TempDir()
	}
	sum := sha256.Sum256([]byte(dir))
	dir = filepath.Join(base, fmt.Sprintf("rollcall-postgres-%x", sum[:8]))
	return dir, prepare(ctx, who, programs, dir)
}

// prepare makes the folder, with access for the account only.
func prepare(ctx context.Context, who account, programs installation, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// In a folder that all users may write, another user may have created it first.
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || stat.Uid != who.uid && stat.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s is not a folder of %s: remove it or choose another", dir, who.name)
	}
	if err := who.own(dir); err != nil {
		return err
	}
	return who.enters(ctx, programs, dir)
}
