package redis

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Command is a command that the server executed.
type Command struct {
	// From is the IP address of the client; for a command of a script, that of the client that called the script.
	From string
	// Script reports whether a Lua script called it.
	Script bool
	// Args are the command's name, in capitals, and its arguments.
	Args []string
}

// Monitor records the commands that a server executes, with MONITOR. It lasts until the server stops or the test ends.
type Monitor struct {
	s    *Server
	conn net.Conn

	mu    sync.Mutex
	grown *sync.Cond
	lines []string
	err   error // why there will be no more lines
}

var marks atomic.Uint64

// Monitor starts recording: it records every command executed after it returns.
func (s *Server) Monitor() *Monitor {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	s.must(err, "dial")
	m := &Monitor{s: s, conn: conn}
	m.grown = sync.NewCond(&m.mu)
	in := bufio.NewReader(conn)
	if p := s.password(); p != "" {
		_, err = fmt.Fprintf(conn, "AUTH %s\r\n", p)
		s.must(err, "AUTH")
		_, err = in.ReadString('\n')
		s.must(err, "AUTH")
	}
	_, err = conn.Write([]byte("MONITOR\r\n"))
	s.must(err, "MONITOR")
	line, err := in.ReadString('\n')
	s.must(err, "MONITOR")
	if !strings.HasPrefix(line, "+OK") {
		s.t.Fatalf("MONITOR on redis-server %s: %s", s.Addr(), line)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			line, err := in.ReadString('\n')
			m.mu.Lock()
			if err != nil {
				m.err = err
			} else {
				m.lines = append(m.lines, line)
			}
			m.grown.Broadcast()
			m.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	s.t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return m
}

// Commands returns all commands executed so far, in order.
func (m *Monitor) Commands() []Command {
	m.s.t.Helper()
	// Once a marker command arrives in the stream, everything before it has arrived.
	mark := fmt.Sprintf("mark-%d", marks.Add(1))
	m.s.must(m.s.client.Echo(m.s.context(), mark).Err(), "ECHO")
	m.mu.Lock()
	defer m.mu.Unlock()
	var commands []Command
	var caller string // of the running script
	for i := 0; ; i++ {
		for i == len(m.lines) && m.err == nil {
			m.grown.Wait()
		}
		if i == len(m.lines) {
			m.s.t.Fatalf("MONITOR on redis-server %s ended: %v", m.s.Addr(), m.err)
		}
		c, err := ParseCommand(m.lines[i])
		m.s.must(err, "MONITOR")
		if c.Script {
			c.From = caller
		}
		caller = c.From
		if c.Args[0] == "ECHO" && len(c.Args) == 2 && strings.HasPrefix(c.Args[1], "mark-") {
			if c.Args[1] == mark {
				return commands
			}
			continue
		}
		commands = append(commands, c)
	}
}

// ParseCommand parses a line of MONITOR such as +1700000000.123456 [0 127.0.0.1:4321] "sadd" "k" "a\x00b".
func ParseCommand(line string) (Command, error) {
	_, rest, ok := strings.Cut(line, "[")
	client, rest, ok2 := strings.Cut(rest, "] ")
	if !ok || !ok2 {
		return Command{}, fmt.Errorf("unreadable line %q", line)
	}
	_, from, _ := strings.Cut(client, " ")
	c := Command{Script: from == "lua"}
	if !c.Script {
		host, _, err := net.SplitHostPort(from)
		if err != nil {
			return Command{}, fmt.Errorf("unreadable line %q: %w", line, err)
		}
		c.From = host
	}
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return Command{}, fmt.Errorf("unreadable line %q", line)
		}
		arg, err := strconv.Unquote(quoted)
		if err != nil {
			return Command{}, fmt.Errorf("unreadable line %q", line)
		}
		c.Args = append(c.Args, arg)
		rest = rest[len(quoted):]
	}
	if len(c.Args) == 0 {
		return Command{}, fmt.Errorf("unreadable line %q", line)
	}
	c.Args[0] = strings.ToUpper(c.Args[0])
	return c, nil
}
