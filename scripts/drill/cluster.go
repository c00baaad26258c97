package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cluster is a Compose project. Its parts have the names of deploy/compose.yaml.
type cluster struct {
	project string
	secrets string // folder with the secrets that scripts/compose.sh made
}

// exitError is the error of a program that ended with an exit code other than 0.
type exitError struct {
	code   int
	output string
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %s", e.code, e.output) }

// docker runs a command of the Docker client and returns its output, without surrounding space.
func docker(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		err = &exitError{exit.ExitCode(), strings.TrimSpace(stdout.String() + stderr.String())}
	}
	if err != nil {
		return "", fmt.Errorf("docker %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(stdout.String()), nil
}

// container returns the container of a service, running or not. Both generations of Compose set these labels, while
// they name containers differently.
func (c *cluster) container(ctx context.Context, service string) (string, error) {
	id, err := docker(ctx, "ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+c.project,
		"--filter", "label=com.docker.compose.service="+service)
	if err != nil {
		return "", err
	}
	if id == "" || strings.Contains(id, "\n") {
		return "", fmt.Errorf("the project %s has not one container of %s: %q", c.project, service, id)
	}
	return id, nil
}

func (c *cluster) containers(ctx context.Context, services []string) ([]string, error) {
	var ids []string
	for _, s := range services {
		id, err := c.container(ctx, s)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// each runs one docker command over the containers of the services.
func (c *cluster) each(ctx context.Context, services []string, command ...string) error {
	ids, err := c.containers(ctx, services)
	if err != nil {
		return err
	}
	_, err = docker(ctx, append(command, ids...)...)
	return err
}

// kill ends a container with SIGKILL; Docker does not restart a container that was killed by command.
func (c *cluster) kill(ctx context.Context, service string) error {
	return c.each(ctx, []string{service}, "kill")
}

func (c *cluster) pause(ctx context.Context, service string) error {
	return c.each(ctx, []string{service}, "pause")
}

func (c *cluster) unpause(ctx context.Context, service string) error {
	return c.each(ctx, []string{service}, "unpause")
}

// stop ends containers with SIGTERM, and with SIGKILL after 15 s.
func (c *cluster) stop(ctx context.Context, services ...string) error {
	return c.each(ctx, services, "stop", "--time", "15")
}

func (c *cluster) start(ctx context.Context, services ...string) error {
	return c.each(ctx, services, "start")
}

// started returns when the container's process started, by the engine's clock.
func (c *cluster) started(ctx context.Context, service string) (time.Time, error) {
	id, err := c.container(ctx, service)
	if err != nil {
		return time.Time{}, err
	}
	at, err := docker(ctx, "inspect", "--format", "{{.State.StartedAt}}", id)
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339Nano, at)
}

func (c *cluster) exitCodes(ctx context.Context, services ...string) (string, error) {
	ids, err := c.containers(ctx, services)
	if err != nil {
		return "", err
	}
	codes, err := docker(ctx, append([]string{"inspect", "--format", "{{.State.ExitCode}}"}, ids...)...)
	return strings.Join(strings.Fields(codes), " "), err
}

// disconnect disconnects a container from one network; it stays on the others.
func (c *cluster) disconnect(ctx context.Context, service, network string) error {
	id, err := c.container(ctx, service)
	if err != nil {
		return err
	}
	_, err = docker(ctx, "network", "disconnect", c.project+"_"+network, id)
	return err
}

// connect connects a container again, under its names in deploy/compose.yaml.
func (c *cluster) connect(ctx context.Context, service, network string) error {
	id, err := c.container(ctx, service)
	if err != nil {
		return err
	}
	_, err = docker(ctx, "network", "connect", "--alias", service, "--alias", service+"."+network, c.project+"_"+network, id)
	return err
}

// address returns a container's IP address on one network.
func (c *cluster) address(ctx context.Context, service, network string) (string, error) {
	id, err := c.container(ctx, service)
	if err != nil {
		return "", err
	}
	ip, err := docker(ctx, "inspect", "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", c.project+"_"+network), id)
	if err == nil && ip == "" {
		err = fmt.Errorf("%s has no address on %s", service, network)
	}
	return ip, err
}

// exec runs a program inside a container.
func (c *cluster) exec(ctx context.Context, service string, command ...string) (string, error) {
	id, err := c.container(ctx, service)
	if err != nil {
		return "", err
	}
	return docker(ctx, append([]string{"exec", id}, command...)...)
}

func (c *cluster) rollcall(ctx context.Context, service string, args ...string) (string, error) {
	return c.exec(ctx, service, append([]string{"/rollcall"}, args...)...)
}

func (c *cluster) redis(ctx context.Context, args ...string) (string, error) {
	return c.exec(ctx, "redis", append([]string{"redis-cli", "-e"}, args...)...)
}

const (
	activeKey = "relayer:active"
	metaKey   = "relayer:meta"
)

// active returns the set of live relayers, sorted.
func (c *cluster) active(ctx context.Context) ([]string, error) {
	out, err := c.redis(ctx, "SMEMBERS", activeKey)
	ids := strings.Fields(out)
	slices.Sort(ids)
	return ids, err
}

// meta is the leader's record about itself in Redis.
type meta struct {
	cluster, leader string
	epoch           uint64
	updatedAt       time.Time
	now             time.Time // Redis's clock, as in updatedAt
}

// age returns the time since the leader's last update.
func (m meta) age() time.Duration { return m.now.Sub(m.updatedAt).Round(time.Millisecond) }

func (c *cluster) meta(ctx context.Context) (meta, error) {
	out, err := c.redis(ctx, "EVAL", "local t = redis.call('TIME') local m = redis.call('HMGET', KEYS[1], 'cluster', 'leader', 'epoch', 'updated_at') "+
		"return {t[1], t[2], m[1] or '', m[2] or '', m[3] or '', m[4] or ''}", "1", metaKey)
	if err != nil {
		return meta{}, err
	}
	f := strings.Split(out, "\n")
	if len(f) != 6 {
		return meta{}, fmt.Errorf("%s is not complete: %q", metaKey, out)
	}
	seconds, err1 := strconv.ParseInt(f[0], 10, 64)
	micros, err2 := strconv.ParseInt(f[1], 10, 64)
	epoch, err3 := strconv.ParseUint(f[4], 10, 64)
	updated, err4 := time.Parse(time.RFC3339, f[5])
	return meta{f[2], f[3], epoch, updated, time.Unix(seconds, micros*1000)}, errors.Join(err1, err2, err3, err4)
}

// status is a coordinator's answer at /status.
type status struct {
	code            int
	Status          string
	TotalConfigured int
	TotalActive     int
}

// status reads a coordinator's status like a user, at the port that Docker publishes on loopback.
func (c *cluster) status(ctx context.Context, service string) (s status, err error) {
	id, err := c.container(ctx, service)
	if err != nil {
		return s, err
	}
	port, err := docker(ctx, "port", id, "3001/tcp")
	if err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+port+"/status", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	s.code = resp.StatusCode
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// directory returns the services with their versions, by a linearizable read: a service that left and returned has
// another version.
func (c *cluster) directory(ctx context.Context) ([]string, error) {
	out, err := c.rollcall(ctx, "coordinator-1", "services", "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	var listed struct {
		Services []struct {
			ID      string
			Version uint64
		}
	}
	if err := json.Unmarshal([]byte(out), &listed); err != nil {
		return nil, fmt.Errorf("services list: %w", err)
	}
	var services []string
	for _, s := range listed.Services {
		services = append(services, fmt.Sprintf("%s@%d", s.ID, s.Version))
	}
	slices.Sort(services)
	return services, nil
}
