package supervisor

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// findRedis returns the path of redis-server.
func findRedis() (string, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("redis-server is not installed: %w; `apt-get install redis-server` on Debian and Ubuntu, "+
			"`brew install redis` on macOS, or name a Redis that runs with --redis-url", err)
	}
	return program, nil
}

// redis returns the member that is the cluster's Redis. It stores nothing on disk, so that a killed one is empty when it is started
// again, and the leader writes everything again.
func (s *supervisor) redis(program string) *member {
	m := &member{id: redisID, kind: kindRedis, ready: answersPing(local(s.ports.Redis))}
	m.launch = func(context.Context) (process, error) {
		args := []string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(s.ports.Redis), "--dir", s.cfg.Data,
			"--save", "", "--appendonly", "no", "--daemonize", "no",
		}
		// Newer versions end at the start if the user's locale is not installed.
		return s.launcher.start(program, args, []string{"LC_ALL=C"}, s.logPath(m))
	}
	return m
}

// answersPing returns a check that a Redis answers.
func answersPing(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return err
		}
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && strings.TrimSpace(answer) != "+PONG" {
			err = fmt.Errorf("redis-server at %s answered %q", address, answer)
		}
		return err
	}
}
