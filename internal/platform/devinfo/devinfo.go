package devinfo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// DefaultData is the default data folder of rollcall-dev, below the current folder.
	DefaultData = "build/dev"
	// File is the name of the file in the data folder.
	File = "dev.json"
	// LockFile is the name of the file that the supervisor locks while it runs.
	LockFile = "lock"
)

// Info is the content of dev.json: all addresses, for scripts. It is written when the whole cluster serves, and again
// after each change. A process that does not run has no pid.
type Info struct {
	RedisURL     string        `json:"redis_url"`
	RedisPID     int           `json:"redis_pid,omitempty"` // 0 also if the cluster uses a Redis that ran already
	KeyPrefix    string        `json:"redis_key_prefix"`
	Coordinators []Coordinator `json:"coordinators"`
	Relayers     []Relayer     `json:"relayers"`
	Gateways     []Gateway     `json:"gateways"`
	APIs         []API         `json:"apis"`
	Consumers    []Consumer    `json:"consumers"`
	Escrows      []Escrow      `json:"escrows"`
	// PoolID is the id of the relayers' pool in their API.
	PoolID string `json:"pool_id"`
	Chain  Chain  `json:"chain"`
	// Contracts are those that the escrow monitor watches.
	Contracts Contracts `json:"contracts"`
	PubSub    PubSub    `json:"pubsub"`
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

// API is an API of the relay path in dev.json.
type API struct {
	ID  string `json:"id"`
	PID int    `json:"pid,omitempty"`
	URL string `json:"url"`
	// APIKey is the x-api-key of the client "dev": a secret.
	APIKey string `json:"api_key"`
}

// Consumer is a consumer of the relay path in dev.json. HTTP is a URL.
type Consumer struct {
	ID   string `json:"id"`
	PID  int    `json:"pid,omitempty"`
	HTTP string `json:"http"`
}

// Chain is the chain in dev.json.
type Chain struct {
	RPCURL  string `json:"rpc_url"`
	WSURL   string `json:"ws_url"`
	ChainID uint64 `json:"chain_id"`
	// Forwarder is the ERC-2771 forwarder of gasless transactions, and Recipient a contract that counts calls by id.
	Forwarder string `json:"forwarder"`
	Recipient string `json:"recipient"`
	PID       int    `json:"pid,omitempty"`
}

// Contracts are the contracts of escrows in dev.json.
type Contracts struct {
	Factory string `json:"factory"`
}

// PubSub is the fake of Pub/Sub in dev.json.
type PubSub struct {
	EmulatorHost string `json:"emulator_host"` // host:port
	Project      string `json:"project"`
	Topic        string `json:"topic"`
	PID          int    `json:"pid,omitempty"`
}

// Escrow is an instance of the escrow monitor in dev.json. HTTP is a URL.
type Escrow struct {
	ID   string `json:"id"`
	PID  int    `json:"pid,omitempty"`
	HTTP string `json:"http"`
}

// Gateway is a gateway in dev.json. HTTP is a URL.
type Gateway struct {
	ID   string `json:"id"`
	PID  int    `json:"pid,omitempty"`
	HTTP string `json:"http"`
}

// ReadInfo reads the data folder's dev.json.
func ReadInfo(data string) (*Info, error) {
	content, err := os.ReadFile(filepath.Join(data, File))
	if err != nil {
		return nil, err
	}
	info := new(Info)
	if err := json.Unmarshal(content, info); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(data, File), err)
	}
	return info, nil
}

// Running returns the cluster that runs from the data folder; nil if there is none.
func Running(data string) *Info {
	if !Locked(data) {
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

// Locked reports whether a cluster runs from the data folder, or is being started.
func Locked(data string) bool {
	lock, err := TryLock(filepath.Join(data, LockFile), syscall.LOCK_SH)
	if err == nil {
		lock.Close()
	}
	return errors.Is(err, ErrLocked)
}

// APIKey returns the API key of a relayer or an API, by its id.
func (i *Info) APIKey(id string) (string, error) {
	var known []string
	for _, r := range i.Relayers {
		if r.ID == id {
			return r.APIKey, nil
		}
		known = append(known, r.ID)
	}
	for _, a := range i.APIs {
		if a.ID == id {
			return a.APIKey, nil
		}
		known = append(known, a.ID)
	}
	return "", fmt.Errorf("there is no relayer or API %q; there are %s", id, strings.Join(known, ", "))
}

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("another process holds the lock")

// TryLock takes an advisory lock that ends when the file is closed, or with the process.
func TryLock(path string, how int) (*os.File, error) {
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
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
