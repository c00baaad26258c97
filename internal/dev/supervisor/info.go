package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// DefaultData is the default data folder of "rollcall dev", below the current folder.
const DefaultData = "build/dev"

// Info is the content of dev.json: all addresses, for scripts. It is written when the whole cluster serves, and again
// after each change. A process that does not run has no pid.
type Info struct {
	RedisURL     string        `json:"redis_url"`
	KeyPrefix    string        `json:"redis_key_prefix"`
	Coordinators []Coordinator `json:"coordinators"`
	Relayers     []Relayer     `json:"relayers"`
	Gateways     []Gateway     `json:"gateways"`
	// PoolID is the id of the relayers' pool in their API.
	PoolID string `json:"pool_id"`
	Chain  Chain  `json:"chain"`
	// DatabaseURL is the URL of the relayers' store, with its password.
	DatabaseURL string `json:"database_url"`
	DatabasePID int    `json:"database_pid,omitempty"`
}

// Coordinator is a coordinator in dev.json. Cluster is host:port, as commands take it; HTTP is a URL.
type Coordinator struct {
	ID      string `json:"id"`
	PID     int    `json:"pid,omitempty"`
	Cluster string `json:"cluster"`
	HTTP    string `json:"http"`
}

// Relayer is a relayer in dev.json.
type Relayer struct {
	ID  string `json:"id"`
	URL string `json:"url"`
	PID int    `json:"pid,omitempty"`
	// APIKey is the bearer token of its API: a secret.
	APIKey string `json:"api_key"`
}

// Chain is the chain in dev.json.
type Chain struct {
	RPCURL  string `json:"rpc_url"`
	WSURL   string `json:"ws_url"`
	ChainID uint64 `json:"chain_id"`
	PID     int    `json:"pid,omitempty"`
}

// Gateway is a gateway in dev.json. HTTP is a URL.
type Gateway struct {
	ID   string `json:"id"`
	PID  int    `json:"pid,omitempty"`
	HTTP string `json:"http"`
}

// ReadInfo reads the data folder's dev.json.
func ReadInfo(data string) (*Info, error) {
	content, err := os.ReadFile(filepath.Join(data, infoFile))
	if err != nil {
		return nil, err
	}
	info := new(Info)
	if err := json.Unmarshal(content, info); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(data, infoFile), err)
	}
	return info, nil
}

// Running returns the cluster that runs from the data folder; nil if there is none.
func Running(data string) *Info {
	if !locked(data) {
		return nil
	}
	info, err := ReadInfo(data)
	if err != nil {
		return nil
	}
	return info
}

// ClusterPorts returns the cluster addresses of the coordinators, host:port.
func (i *Info) ClusterPorts() []string {
	var addresses []string
	for _, c := range i.Coordinators {
		addresses = append(addresses, c.Cluster)
	}
	return addresses
}

// locked reports whether a cluster runs from the data folder, or is being started.
func locked(data string) bool {
	lock, err := tryLock(filepath.Join(data, lockFile), syscall.LOCK_SH)
	if err == nil {
		lock.Close()
	}
	return errors.Is(err, errLocked)
}

const (
	infoFile  = "dev.json"
	portsFile = "ports.json"
	lockFile  = "lock"
)

// APIKey returns the API key of a relayer, by its id.
func (i *Info) APIKey(relayer string) (string, error) {
	var known []string
	for _, r := range i.Relayers {
		if r.ID == relayer {
			return r.APIKey, nil
		}
		known = append(known, r.ID)
	}
	return "", fmt.Errorf("there is no relayer %q; there are %s", relayer, strings.Join(known, ", "))
}

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

var errLocked = errors.New("another process holds the lock")

// tryLock takes an advisory lock that ends when the file is closed, or with the process.
func tryLock(path string, how int) (*os.File, error) {
	flags := os.O_RDWR | os.O_CREATE
	if how == syscall.LOCK_SH {
		flags = os.O_RDONLY // a mere check must not create the file
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// lockAlone takes the exclusive lock, waiting for it at most patience.
func lockAlone(ctx context.Context, path string, patience time.Duration) (*os.File, error) {
	for limit := time.After(patience); ; {
		f, err := tryLock(path, syscall.LOCK_EX)
		if !errors.Is(err, errLocked) {
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
