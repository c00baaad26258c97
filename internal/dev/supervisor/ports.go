package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
)

// ports are the ports of a cluster. The coordinators' ports are chosen once and then kept, because Raft's configuration
// contains them.
type ports struct {
	Redis    int          `json:"redis"`
	Gateway  int          `json:"gateway"`
	Cluster  [nodes]int   `json:"cluster"`
	HTTP     [nodes]int   `json:"http"`
	Relayer  [relays]int  `json:"relayer"`
	API      [apis]int    `json:"api"`
	Consumer [apis]int    `json:"consumer"`
	Escrow   [escrows]int `json:"escrow"`
	PubSub   int          `json:"pubsub"`
	Chain    int          `json:"chain"`
	Postgres int          `json:"postgres"`
}

// preferred are the ports on a machine where nothing else runs: those in the README.
var preferred = ports{
	Redis: 6390, Gateway: 7401,
	Cluster: [nodes]int{7411, 7412, 7413},
	HTTP:    [nodes]int{3011, 3012, 3013},
	Relayer: [relays]int{3100, 3101, 3102},
	API:     [apis]int{8080, 8081}, Consumer: [apis]int{9090, 9091},
	Escrow: [escrows]int{9092, 9093}, PubSub: 8085,
	Chain: 8545, Postgres: 5439,
}

// A replacement for a taken port is picked from this range. It is below the range that kernels use for outgoing
// connections.
const firstPort, lastPort = 20_000, 30_000

func readPorts(data string) (p ports, err error) {
	path := filepath.Join(data, portsFile)
	content, err := os.ReadFile(path)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(content, &p); err != nil {
		return p, fmt.Errorf("%s: %w; remove the file to choose ports again", path, err)
	}
	return p, nil
}

// all returns pointers to every port. The first remembered ones are in Raft's configuration.
func (p *ports) all() (ports []*int, remembered int) {
	for i := range nodes {
		ports = append(ports, &p.Cluster[i])
	}
	for i := range nodes {
		ports = append(ports, &p.HTTP[i])
	}
	for i := range relays {
		ports = append(ports, &p.Relayer[i])
	}
	for i := range apis {
		ports = append(ports, &p.API[i], &p.Consumer[i])
	}
	for i := range escrows {
		ports = append(ports, &p.Escrow[i])
	}
	return append(ports, &p.Redis, &p.Gateway, &p.Chain, &p.Postgres, &p.PubSub), nodes
}

// choosePorts picks each preferred port if it is free, else that of the last run, else any. A port is taken if a
// process listens on it, or if the cluster of another data folder needs it. While that cluster runs, it needs all its
// ports, because a killed member uses them again. While it does not run, it needs those in Raft's configuration.
func choosePorts(ctx context.Context, data string, preferred ports) (*ports, error) {
	last, err := readPorts(data)
	again := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	self, err := filepath.Abs(data)
	if err != nil {
		return nil, err
	}
	r, err := openRegister(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	taken := r.portsBut(self)

	chosen := preferred
	all, remembered := chosen.all()
	lastAll, _ := last.all()
	var errs []error
	for i, port := range all {
		if again && i < remembered {
			if *port = *lastAll[i]; !free(*port) {
				errs = append(errs, fmt.Errorf("port %d, which a coordinator of %s uses, is taken by another process; "+
					"end that one, or remove the folder to start afresh", *port, data))
			}
			taken[*port] = true
			continue
		}
		if again && (taken[*port] || !free(*port)) {
			*port = *lastAll[i]
		}
		for *port == 0 || taken[*port] || !free(*port) { // 0: the last run had no such port
			*port = firstPort + rand.IntN(lastPort-firstPort)
		}
		taken[*port] = true
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(data, portsFile), chosen); err != nil {
		return nil, err
	}
	return &chosen, r.add(self)
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

// register lists the data folders of this user's clusters on this machine, one per line, so that each finds the ports
// of the others. One process at a time has it open.
type register struct {
	*os.File
	folders []string
}

func openRegister(ctx context.Context) (*register, error) {
	cache, err := os.UserCacheDir()
	if err != nil { // a process without a home directory
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "rollcall")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return nil, err
	}
	f, err := lockAlone(ctx, filepath.Join(cache, "dev-folders"), startLimit)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &register{File: f, folders: strings.FieldsFunc(string(content), func(c rune) bool { return c == '\n' })}, nil
}

// portsBut returns the ports that every cluster but one holds. A missing folder holds none.
func (r *register) portsBut(self string) map[int]bool {
	taken := map[int]bool{}
	for _, folder := range r.folders {
		if folder == self {
			continue
		}
		p, err := readPorts(folder)
		if err != nil {
			continue
		}
		all, remembered := p.all()
		if !devinfo.Locked(folder) {
			all = all[:remembered]
		}
		for _, port := range all {
			taken[*port] = true
		}
	}
	return taken
}

// add writes the folder into the register, and removes missing ones.
func (r *register) add(self string) error {
	folders := slices.DeleteFunc(append(r.folders, self), func(folder string) bool {
		_, err := os.Stat(filepath.Join(folder, portsFile))
		return err != nil
	})
	slices.Sort(folders)
	content := strings.Join(slices.Compact(folders), "\n") + "\n"
	if _, err := r.WriteAt([]byte(content), 0); err != nil {
		return err
	}
	return r.Truncate(int64(len(content)))
}
