package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// docker runs a command of the Docker client and returns its output, without surrounding space.
func (d *drill) docker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s%s", err, out, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("docker %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// container returns the container of a service, running or not. Both generations of Compose set these labels, while
// they name containers differently.
func (d *drill) container(service string) (string, error) {
	id, err := d.docker("ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+d.project,
		"--filter", "label=com.docker.compose.service="+service)
	if err == nil && (id == "" || strings.Contains(id, "\n")) {
		err = fmt.Errorf("the project %s has not one container of %s: %q", d.project, service, id)
	}
	return id, err
}

// each runs one docker command over the containers of the services, and returns its output.
func (d *drill) each(services []string, command ...string) (string, error) {
	for _, s := range services {
		id, err := d.container(s)
		if err != nil {
			return "", err
		}
		command = append(command, id)
	}
	return d.docker(command...)
}

// must runs one docker command over the containers of the services. Docker does not restart a container that was killed
// by command.
func (d *drill) must(command string, services ...string) {
	_, err := d.each(services, strings.Fields(command)...)
	d.check(err)
}

// stop ends a container with SIGTERM, and with SIGKILL after 15 s.
const stop = "stop --time 15"

// address returns a container's IP address on one network.
func (d *drill) address(service, network string) string {
	ip, err := d.each([]string{service}, "inspect", "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", d.project+"_"+network))
	if err == nil && ip == "" {
		err = fmt.Errorf("%s has no address on %s", service, network)
	}
	d.check(err)
	return ip
}

// exec runs a program inside a container.
func (d *drill) exec(service string, command ...string) (string, error) {
	id, err := d.container(service)
	if err != nil {
		return "", err
	}
	return d.docker(append([]string{"exec", id}, command...)...)
}

// healthcheck returns nil if an address answers inside a container.
func (d *drill) healthcheck(service, timeout, url string) error {
	_, err := d.exec(service, "/rollcall", "healthcheck", "--timeout", timeout, url)
	return err
}

func (d *drill) redis(args ...string) (string, error) {
	return d.exec("redis", append([]string{"redis-cli", "-e"}, args...)...)
}

const (
	activeKey = "relayer:active"
	metaKey   = "relayer:meta"
)

// meta is the leader's record about itself in Redis.
type meta struct {
	Cluster, Leader string
	Epoch           uint64    `json:",string"`
	UpdatedAt       time.Time `json:"updated_at"`
	Now             float64   // Redis's clock, as in UpdatedAt, in seconds
}

// age returns the time since the leader's last update.
func (m meta) age() time.Duration {
	return time.UnixMicro(int64(m.Now * 1e6)).Sub(m.UpdatedAt).Round(time.Millisecond)
}

func (d *drill) meta() (m meta, err error) {
	out, err := d.redis("EVAL", "local t, m = redis.call('TIME'), redis.call('HMGET', KEYS[1], 'cluster', 'leader', 'epoch', 'updated_at') "+
		"return cjson.encode({now = t[1] + t[2] / 1e6, cluster = m[1], leader = m[2], epoch = m[3], updated_at = m[4]})", "1", metaKey)
	if err == nil {
		err = json.Unmarshal([]byte(out), &m)
	}
	return m, err
}

// directory returns the services with their versions, by a linearizable read: a service that left and returned has
// another version.
func (d *drill) directory() (services []string, err error) {
	out, err := d.exec("coordinator-1", "/rollcall", "services", "list", "-o", "json")
	var listed struct {
		Services []struct {
			ID      string
			Version uint64
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &listed)
	}
	for _, s := range listed.Services {
		services = append(services, fmt.Sprintf("%s@%d", s.ID, s.Version))
	}
	slices.Sort(services)
	return services, err
}

// url returns the URL of a container's port that Docker publishes on loopback; it changes with each start.
func (d *drill) url(service, port string) (string, error) {
	id, err := d.container(service)
	if err != nil {
		return "", err
	}
	addr, err := d.docker("port", id, port+"/tcp")
	if err == nil && addr == "" {
		err = fmt.Errorf("%s does not run", service)
	}
	return "http://" + addr, err
}

// client keeps no connections, because a port may belong to another container later.
var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// send sends a request and decodes the answer.
func send(req *http.Request, answer any) (code int, err error) {
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	return res.StatusCode, json.NewDecoder(res.Body).Decode(answer)
}

// get reads a path at a port that Docker publishes.
func (d *drill) get(service, port, path string, answer any) (code int, err error) {
	url, err := d.url(service, port)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(d.ctx, http.MethodGet, url+path, nil)
	if err != nil {
		return 0, err
	}
	return send(req, answer)
}

type transaction struct{ ID, Status string }

// answer is an answer of a relayer's API.
type answer struct {
	code  int
	Data  transaction
	Error any
	// Result is the node's answer, at /rpc.
	Result string
}

// call sends an authorized request for a path of the relayers' pool, at a relayer's current URL if url is empty.
func (d *drill) call(url, relayer, method, path, idempotency, body string) (a answer, err error) {
	key, err := os.ReadFile(filepath.Join(d.secrets, relayer+".api-key"))
	if err == nil && url == "" {
		url, err = d.url(relayer, "3000")
	}
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(d.ctx, method, url+"/api/v1/relayers/pool"+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	_, bearer, _ := strings.Cut(strings.TrimSpace(string(key)), ":")
	req.Header = http.Header{"Authorization": {"Bearer " + bearer}, "Content-Type": {"application/json"}}
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	a.code, err = send(req, &a)
	return a, err
}

// post submits a payment of one wei.
func (d *drill) post(url, relayer, idempotency, to string) (answer, error) {
	return d.call(url, relayer, http.MethodPost, "/transactions", idempotency, fmt.Sprintf(`{"to": %q, "value": 1}`, to))
}

// accepted returns the transaction of an answer, and fails unless the relayer accepted the request.
func accepted(a answer, err error) (transaction, error) {
	if err == nil && a.code != http.StatusOK {
		err = fmt.Errorf("%d %v", a.code, a.Error)
	}
	return a.Data, err
}
