package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// ports are chosen once and then kept, so that a second run finds the addresses the first one left in Raft's
// configuration, in scripts and in people's heads.
type ports struct {
	Redis   int         `json:"redis"`
	Gateway int         `json:"gateway"`
	Cluster [nodes]int  `json:"cluster"`
	HTTP    [nodes]int  `json:"http"`
	Relayer [relays]int `json:"relayer"`
}

// preferred are the ports of a machine where nothing else runs.
var preferred = ports{
	Redis: 6390, Gateway: 7401,
	Cluster: [nodes]int{7411, 7412, 7413},
	HTTP:    [nodes]int{3011, 3012, 3013},
	Relayer: [relays]int{3100, 3101, 3102},
}

// Where those are taken, another is picked from here: below the range from which kernels take the ports of
// outgoing connections.
const firstPort, lastPort = 20_000, 32_000

// each calls f for every port, with whether Raft remembers it.
func (p *ports) each(f func(port *int, remembered bool) error) error {
	errs := []error{f(&p.Redis, false), f(&p.Gateway, false)}
	for i := range nodes {
		errs = append(errs, f(&p.Cluster[i], true), f(&p.HTTP[i], false))
	}
	for i := range relays {
		errs = append(errs, f(&p.Relayer[i], false))
	}
	return errors.Join(errs...)
}

// choosePorts takes the remembered ports, or free ones.
func choosePorts(data string) (*ports, error) {
	path := filepath.Join(data, portsFile)
	content, err := os.ReadFile(path)
	again := err == nil
	p := preferred
	switch {
	case again:
		if err := json.Unmarshal(content, &p); err != nil {
			return nil, fmt.Errorf("%s: %w; remove the file to choose ports anew", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	taken := map[int]bool{}
	err = p.each(func(port *int, remembered bool) error {
		if !free(*port) {
			if again && remembered {
				return fmt.Errorf("port %d, which a coordinator of %s uses, is taken by another process; end that one, or remove the folder to start afresh", *port, data)
			}
			for range 1000 {
				if *port = firstPort + rand.IntN(lastPort-firstPort); !taken[*port] && free(*port) {
					break
				}
			}
		}
		taken[*port] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &p, writeJSON(path, p)
}

func free(port int) bool {
	l, err := net.Listen("tcp", local(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// lockPorts keeps other supervisors on this machine from choosing ports while the chosen ones are not bound yet.
func lockPorts(ctx context.Context) (*os.File, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("rollcall-dev-ports-%d.lock", os.Getuid()))
	for {
		lock, err := tryLock(path, syscall.LOCK_EX)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
