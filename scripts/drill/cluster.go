package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

const (
	project  = "rollcall-drill" // of scripts/compose.sh drill
	interval = 2 * time.Second  // of its health checks

	readyURL  = "http://127.0.0.1:3001/readyz" // inside a coordinator's container
	activeKey = "relayer:active"
	metaKey   = "relayer:meta"
)

var (
	coordinators = []string{"coordinator-1", "coordinator-2", "coordinator-3"}
	relayers     = []string{"oz-relayer-0", "oz-relayer-1", "oz-relayer-2"}
)

// find looks up the services' containers, running or not. Both generations of Compose set these labels, while they name
// containers differently.
func (d *drill) find() {
	found := strings.Fields(d.run("ps", "--all", "--filter", "label=com.docker.compose.project="+project,
		"--format", `{{.Label "com.docker.compose.service"}} {{.ID}}`))
	if len(found) == 0 {
		d.check(fmt.Errorf("there is no project %s: run scripts/compose.sh drill", project))
	}
	d.containers = map[string]string{}
	for pair := range slices.Chunk(found, 2) {
		d.containers[pair[0]] = pair[1]
	}
}

// run runs a command of the Docker client and returns its output.
func (d *drill) run(args ...string) string {
	start := time.Now()
	defer func() { d.docker += time.Since(start) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("docker %s: %w: %s%s", strings.Join(args, " "), err, out, exit.Stderr)
	}
	d.check(err)
	return string(out)
}

// each runs one Docker command over the containers of the services.
func (d *drill) each(services []string, command ...string) string {
	for _, s := range services {
		command = append(command, d.containers[s])
	}
	return d.run(command...)
}

// act runs a Docker command, given as words. The time of the next row begins with it. Docker does not restart a container
// that was killed by command.
func (d *drill) act(command string, services ...string) {
	d.begin()
	d.each(services, strings.Fields(command)...)
}

// addresses is a template of a container's IP addresses, in the order of its networks' names.
const addresses = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"

// inspect returns the words that a template selects from the containers' descriptions.
func (d *drill) inspect(template string, services ...string) []string {
	return strings.Fields(d.each(services, "inspect", "--format", template))
}

func (d *drill) exec(service string, command ...string) string {
	return d.run(append([]string{"exec", d.containers[service]}, command...)...)
}

// answers returns whether an address answers inside a container.
func (d *drill) answers(service, url string) string {
	err := d.attempt(func() { d.exec(service, "/rollcall", "healthcheck", url) })
	// Only the program's own exit code 1 counts as no answer.
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		return "does not answer"
	}
	d.check(err)
	return "answers"
}

// ready returns the coordinators that report that they are ready.
func (d *drill) ready() string {
	return fmt.Sprint(slices.DeleteFunc(slices.Clone(coordinators), func(c string) bool {
		return d.answers(c, readyURL) != "answers"
	}))
}

// directory returns the services with their versions, by a linearizable read: a service that left and returned has
// another version.
func (d *drill) directory() string {
	var listed struct{ Services []struct{ ID, Version any } }
	d.check(json.Unmarshal([]byte(d.exec("coordinator-1", "/rollcall", "services", "list", "-o", "json")), &listed))
	return fmt.Sprint(listed.Services)
}

// request returns a request to the port that Docker publishes, which changes with each start.
func (d *drill) request(service, method, path, body string) *http.Request {
	url := d.inspect("{{range .NetworkSettings.Ports}}{{range .}}http://127.0.0.1:{{.HostPort}}{{end}}{{end}}", service)
	req, err := http.NewRequest(method, strings.Join(url, "")+path, strings.NewReader(body))
	d.check(err)
	key, _ := os.ReadFile("build/compose/" + service + ".api-key") // no coordinator has one
	_, bearer, _ := strings.Cut(strings.TrimSpace(string(key)), ":")
	req.Header.Set("Authorization", "Bearer "+bearer)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // because another container may get the port later
	return req
}

// answer holds the fields that the drill reads from the answers of coordinators and relayers.
type answer struct {
	code   int
	Data   struct{ ID, Status string } // a transaction
	Error  any
	Result string // the node's answer to a relayer's /rpc
	Reason string // of /health
	Status string // of /status, as the totals

	TotalConfigured, TotalActive int
}

func (d *drill) call(req *http.Request) (a answer) {
	a.code = d.send(req, &a)
	return a
}

// send reads the answer to a request into a value, and returns its code.
func (d *drill) send(req *http.Request, into any) int {
	res, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	d.check(err)
	defer res.Body.Close()
	d.check(json.NewDecoder(res.Body).Decode(into))
	return res.StatusCode
}

func (d *drill) redis(args ...string) string {
	return d.exec("redis", append([]string{"redis-cli", "-e"}, args...)...)
}

func (d *drill) active() string {
	return fmt.Sprint(slices.Sorted(slices.Values(strings.Fields(d.redis("SMEMBERS", activeKey)))))
}

// meta is the leader's record about itself in Redis.
type meta struct {
	Cluster, Leader string
	Epoch           uint64    `json:",string"`
	UpdatedAt       time.Time `json:"updated_at"`
}

func (d *drill) meta() (m meta) {
	d.check(json.Unmarshal([]byte(d.redis("--json", "HGETALL", metaKey)), &m))
	return m
}

// command is a command that changes Redis.
type command testredis.Command

// reading are the read-only commands. Every other command counts as a write.
var reading = []string{
	"AUTH", "CLIENT", "COMMAND", "ECHO", "EVAL", "EVALSHA", "EXISTS", "GET", "HELLO", "HGET", "HGETALL", "HMGET", "INFO", "MONITOR",
	"PING", "PUBSUB", "SCARD", "SCRIPT", "SELECT", "SISMEMBER", "SMEMBERS", "SMISMEMBER", "SSCAN", "SUBSCRIBE", "TIME", "TTL", "TYPE",
}

// removes reports whether the command may remove id from the active set. An unknown command may.
func (c command) removes(id string) bool {
	switch c.Args[0] {
	case "SADD", "PUBLISH":
		return false
	case "SREM":
		return slices.Contains(c.Args, activeKey) && slices.Contains(c.Args, id)
	case "DEL", "HDEL", "HSET", "SET": // only the named keys
		return slices.Contains(c.Args, activeKey)
	default:
		return true
	}
}

// epoch returns the epoch that the command writes into relayer:meta; 0 if it writes none.
func (c command) epoch() uint64 {
	i := slices.Index(c.Args, "epoch")
	if i < 0 || i+1 == len(c.Args) || c.Args[0] != "HSET" || c.Args[1] != metaKey {
		return 0
	}
	epoch, _ := strconv.ParseUint(c.Args[i+1], 10, 64) // 0 with an error
	return epoch
}

// watch starts to record all that happens in Redis, in two files of its container: each command, from MONITOR, and the
// active set, from a reader that polls every 10 ms. If the reader ends, so does MONITOR.
func (d *drill) watch() {
	d.exec("redis", "touch", "/tmp/commands", "/tmp/polls")
	d.run("exec", "--detach", d.containers["redis"], "sh", "-c", "redis-cli MONITOR >/tmp/commands & "+
		"redis-cli --csv -r -1 -i 0.01 SMEMBERS "+activeKey+" >/tmp/polls; kill $!")
	d.mark()
}

// mark returns the writes and the polls so far. It waits until MONITOR has recorded a marker. MONITOR may not be active at
// first, so the marker is sent again.
func (d *drill) mark() (writes []command, polls []string) {
	marker, commands, found := rand.Text(), "", false
	for tries := 0; !found; tries++ {
		if tries == 100 {
			d.check(errors.New("MONITOR records nothing"))
		}
		d.redis("ECHO", marker)
		commands, _, found = strings.Cut(d.exec("redis", "cat", "/tmp/commands"), marker)
	}
	client := "" // that called the script
	for line := range strings.Lines(commands) {
		c, err := testredis.ParseCommand(line)
		if err != nil {
			continue // the OK that precedes the commands, or the beginning of the marker's line
		}
		if c.Script {
			c.From = client
		}
		client = c.From
		if !slices.Contains(reading, c.Args[0]) {
			writes = append(writes, command(c))
		}
	}
	polls = strings.Split(d.exec("redis", "cat", "/tmp/polls"), "\n")
	return writes, polls[:len(polls)-1] // without an incomplete line
}

// guarded runs act while every given id must stay in the active set, and prints a row with the ids that left.
func (d *drill) guarded(ids []string, act func()) {
	start := time.Now()
	oldWrites, oldPolls := d.mark()
	act()
	writes, polls := d.mark()
	writes, polls = writes[len(oldWrites):], polls[len(oldPolls):]
	var missing []string
	for _, id := range ids {
		for _, c := range writes {
			if c.removes(id) {
				missing = append(missing, fmt.Sprintf("%s removed %s: %s", c.From, id, c.Args))
			}
		}
		for _, line := range polls {
			if !strings.Contains(line, strconv.Quote(id)) {
				missing = append(missing, fmt.Sprintf("a reader missed %s: %s", id, line))
			}
		}
	}
	seen := fmt.Sprintf("none in %d polls and %d writes", len(polls), len(writes))
	if len(missing) > 0 {
		seen = strings.Join(missing, "; ")
	}
	// A guard that saw no poll and no command proves nothing.
	ok := len(missing) == 0 && len(polls) > 0 && len(writes) > 0
	d.start = start
	d.row(fmt.Sprintf("  %s meanwhile", ids), "no healthy relayer ever missing", seen, 0, ok)
}

// silent prints a row of the commands with which a deposed leader changed Redis after another's claim. If it may lead
// again, it writes from its own next claim on. The time is the one since the claim.
func (d *drill) silent(step, deposed string, claim meta, mayLead bool) {
	from := d.inspect(addresses, deposed)
	writes, _ := d.mark()
	first := slices.IndexFunc(writes, func(c command) bool { return c.epoch() == claim.Epoch })
	if first < 0 || len(from) == 0 {
		d.check(fmt.Errorf("the claim of epoch %d was not seen, or %s has no address", claim.Epoch, deposed))
	}
	own := slices.DeleteFunc(slices.Clone(writes[first:]), func(c command) bool { return !slices.Contains(from, c.From) })
	again := slices.IndexFunc(own, func(c command) bool { return c.epoch() > claim.Epoch })
	late, then := own, ""
	if again >= 0 {
		late, then = own[:again], fmt.Sprintf(" before it led again, epoch %d", own[again].epoch())
	}
	seen := fmt.Sprintf("%d writes%s", len(late), then)
	if len(late) > 0 {
		seen += fmt.Sprint(", first: ", late[0].Args)
	}
	d.start = claim.UpdatedAt
	d.row(step, "0 writes", seen, 0, len(late) == 0 && (again < 0 || mayLead))
}
