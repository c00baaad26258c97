package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// `rollcall gateway` as a process: definition files, advertisements, and the state that survives its death.

// agent is a gateway process with its state between runs.
type agent struct {
	*process
	c                   *cluster
	id, http            string
	definitions, memory string
	env                 map[string]string // overrides the defaults
}

func (c *cluster) defineAgent(id string) *agent {
	dir := c.t.TempDir()
	a := &agent{c: c, id: id, http: fmt.Sprintf("127.0.0.1:%d", freePort(c.t)),
		definitions: filepath.Join(dir, "services"), memory: filepath.Join(dir, "state"), env: map[string]string{}}
	require.NoError(c.t, os.Mkdir(a.definitions, 0o700))
	return a
}

// start starts the process, and waits until it answers.
func (a *agent) start() {
	a.c.t.Helper()
	a.run()
	a.await("/healthz", http.StatusOK)
}

func (a *agent) run() {
	env := map[string]string{
		"ROLLCALL_GATEWAY_ID": a.id, "ROLLCALL_COORDINATORS": a.c.addresses(), "ROLLCALL_DEFINITIONS": a.definitions,
		"ROLLCALL_GATEWAY_LISTEN": a.http, "ROLLCALL_GATEWAY_STATE_DIR": a.memory, "ROLLCALL_LOG_LEVEL": "debug",
	}
	maps.Copy(env, a.env)
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	a.process = launch(a.c.t, a.id, list, "gateway")
}

// await waits for an answer with that code.
func (a *agent) await(path string, code int) {
	a.c.t.Helper()
	eventually(a.c.t, patience, func() bool { got, _ := a.call(http.MethodGet, path, ""); return got == code }, "%s answers %d", path, code)
}

// call sends a request like a local process; the code is 0 if there is no answer.
func (a *agent) call(method, path, body string) (code int, answer string) {
	a.c.t.Helper()
	req, err := http.NewRequestWithContext(a.c.t.Context(), method, "http://"+a.http+path, strings.NewReader(body))
	require.NoError(a.c.t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer closeBody(resp.Body)
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, ""
	}
	return resp.StatusCode, string(content)
}

// advertise posts a service, which is stored when it returns.
func (a *agent) advertise(id, url string) {
	a.c.t.Helper()
	code, answer := a.call(http.MethodPost, "/v1/services", definition(id, url))
	require.Equal(a.c.t, http.StatusAccepted, code, answer)
}

// write writes a definition file like an editor would.
func (a *agent) write(name, content string) {
	a.c.t.Helper()
	require.NoError(a.c.t, os.WriteFile(filepath.Join(a.definitions, name), []byte(content), 0o600))
}

func (a *agent) remove(name string) {
	a.c.t.Helper()
	require.NoError(a.c.t, os.Remove(filepath.Join(a.definitions, name)))
}

func definition(id, url string) string {
	return fmt.Sprintf(`{"id": %q, "kind": "relayer", "worker_ref": {"url": %q}}`, id, url)
}

// page returns the gateway's report about its files and services.
func (a *agent) page() (page struct {
	Services []struct{ ID, State, Reason string }
	Files    []struct {
		Name, Error string
		Services    int
	}
}) {
	a.c.t.Helper()
	code, body := a.call(http.MethodGet, "/v1/services", "")
	require.Equal(a.c.t, http.StatusOK, code)
	require.NoError(a.c.t, json.Unmarshal([]byte(body), &page), body)
	return page
}

// awaitDirectory waits until the directory holds exactly these ids.
func (c *cluster) awaitDirectory(ids ...string) {
	c.t.Helper()
	slices.Sort(ids)
	var held []string
	eventually(c.t, patience, func() bool { held = c.directory(); return slices.Equal(ids, held) }, "the directory holds %v", ids)
}

func (c *cluster) urlOf(id string) string {
	c.t.Helper()
	leader, _ := c.leader()
	resp, err := leader.discovery().ListServices(c.t.Context(), &rollcallv1.ListServicesRequest{Ids: []string{id}})
	if err != nil || len(resp.Records) == 0 {
		return ""
	}
	return resp.Records[0].Service.WorkerRef.Url
}

// A gateway with files, advertisements and a separate self-registering program is killed and started again. Nothing
// leaves the directory or the set, even while services are down for a moment, or there is no leader.
func TestGateway_Killed_LosesNothing(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 5)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-1")
	a.write("one.json", definition(ids[0], relayers[0].url()))
	a.write("two.yaml", "services:\n- id: "+ids[1]+"\n  kind: relayer\n  worker_ref:\n    url: "+relayers[1].url()+"\n")
	a.start()
	a.advertise(ids[2], relayers[2].url())
	a.advertise(ids[3], relayers[3].url())
	self := c.startRegistrant("self", relayers[4])
	c.awaitActive(patience, ids...)
	a.await("/readyz", http.StatusOK)

	stopSet, stopDirectory := c.watchSet(ids[:3]...), c.watchDirectory(ids...)
	kill := func(meanwhile, then func()) {
		a.kill()
		self.kill()
		meanwhile()
		a.start()
		self = c.startRegistrant("self", relayers[4])
		then()
		a.await("/readyz", http.StatusOK)
		eventually(t, patience, func() bool { return len(self.logged("directory written")) > 0 }, "the program has registered itself")
		c.awaitActive(patience, ids...)
		require.Equal(t, ids, c.directory())
	}
	nothing := func() {}
	kill(nothing, nothing)
	kill(func() { relayers[3].crash() }, func() { // it is down while the gateway starts and registers
		eventually(t, patience, func() bool { return len(a.logged("directory written")) > 0 }, "a write")
		relayers[3].start()
	})
	kill(func() { a.write("one.json", "{") }, func() { // it became invalid meanwhile: the stored definition is kept
		a.await("/readyz", http.StatusOK)
		eventually(t, patience, func() bool { return a.page().Files[0].Error != "" }, "it is reported")
		a.write("one.json", definition(ids[0], relayers[0].url()))
	})
	leader, epoch := c.leader()
	kill(leader.kill, func() { _, _ = c.leaderAfter(epoch); c.start(leader.id) })
	require.Zero(t, a.stop(), "a stop leaves everything there, too")
	require.Equal(t, ids, c.directory())
	stopDirectory()
	stopSet()
}

func TestGateway_DefinitionFilesChange_AreFollowed(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 4)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-1")
	a.write("a.json", definition(ids[0], relayers[0].url()))
	a.start()
	c.awaitActive(patience, ids[0])

	a.write("b.json", definition(ids[1], relayers[1].url()))
	c.awaitActive(patience, ids[:2]...)
	require.Equal(t, relayers[1].url(), c.urlOf(ids[1]))

	stop := c.watchSet(ids[:2]...)
	a.write("b.json", definition(ids[1], relayers[2].url()))
	eventually(t, patience, func() bool { return c.urlOf(ids[1]) == relayers[2].url() }, "the change")

	stopDirectory := c.watchDirectory(ids[:2]...)
	for _, broken := range []string{"", "{", `{"id": "UPPER"}`, definition(ids[1], "ftp://nowhere"), definition(ids[0], relayers[0].url()) + "x"} {
		a.write("b.json", broken)
		eventually(t, patience, func() bool {
			files := a.page().Files
			return len(files) == 2 && files[1].Name == "b.json" && files[1].Error != "" && files[1].Services == 1
		}, "%q is reported on the page", broken)
	}
	require.NotEmpty(t, slices.Concat(a.leveled("WARN"), a.leveled("ERROR")), "and in the log")
	a.write("c.yml", "- id: "+ids[3]+"\n  kind: relayer\n  worker_ref: {url: '"+relayers[3].url()+"'}\n")
	c.awaitActive(patience, ids[0], ids[1], ids[3])
	require.Equal(t, relayers[2].url(), c.urlOf(ids[1]), "the last good version is kept")
	a.write("b.json", definition(ids[1], relayers[2].url()))
	eventually(t, patience, func() bool { return a.page().Files[1].Error == "" }, "mended")
	stopDirectory()
	stop()

	a.remove("b.json")
	c.awaitActive(patience, ids[0], ids[3])
	c.awaitDirectory(ids[0], ids[3])
	// Files are added and removed by renaming, like in a deployment.
	a.write(".new", definition(ids[1], relayers[1].url()))
	require.NoError(t, os.Rename(filepath.Join(a.definitions, ".new"), filepath.Join(a.definitions, "a.json")))
	c.awaitDirectory(ids[1], ids[3])
	require.Zero(t, a.stop())
}

// leveled returns the log lines of a level.
func (p *process) leveled(level string) (lines []string) {
	for _, line := range p.output() {
		if strings.Contains(line, `"level":"`+level+`"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestGateway_Advertisements(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 3)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-1")
	a.write("a.json", definition(ids[0], relayers[0].url()))
	a.start()
	a.advertise(ids[1], relayers[1].url())
	c.awaitActive(patience, ids[:2]...)
	a.advertise(ids[1], relayers[2].url())
	eventually(t, patience, func() bool { return c.urlOf(ids[1]) == relayers[2].url() }, "the change")

	for body, want := range map[string]int{
		definition(ids[0], relayers[0].url()): http.StatusConflict, "{": http.StatusBadRequest, definition("UPPER", "http://x"): http.StatusBadRequest,
	} {
		code, answer := a.call(http.MethodPost, "/v1/services", body)
		require.Equal(t, want, code, "%s: %s", body, answer)
		require.Contains(t, answer, `"how"`)
	}
	code, _ := a.call(http.MethodDelete, "/v1/services/"+ids[1], "")
	require.Equal(t, http.StatusOK, code)
	c.awaitActive(patience, ids[0])
	c.awaitDirectory(ids[0])
	require.Zero(t, a.stop())

	// A withdrawn service stays withdrawn.
	a.start()
	a.await("/readyz", http.StatusOK)
	require.Equal(t, ids[:1], c.directory())
}

// A service that is locally unhealthy when it is defined waits. A service that has been offered once stays, whatever
// its state; the leader's checks decide.
func TestGateway_LocallyUnhealthy_DelaysFirstRegistrationOnly(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 3)
	relayers[1].answer(http.StatusServiceUnavailable)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-1")
	a.write("a.json", definition(ids[0], relayers[0].url()))
	a.write("b.json", definition(ids[1], relayers[1].url()))
	a.start()
	c.awaitActive(patience, ids[0])
	a.await("/readyz", http.StatusOK)
	relayers[2].crash()
	a.advertise(ids[2], relayers[2].url())
	eventually(t, patience, func() bool {
		s := a.page().Services
		return len(s) == 3 && s[0].State == "offered" && s[1].State == "held" && s[1].Reason != "" && s[2].State == "held" && s[2].Reason != ""
	}, "the page says who is held back, and why")
	require.Equal(t, ids[:1], c.directory())

	relayers[1].answer(http.StatusOK)
	relayers[2].start()
	c.awaitActive(patience, ids...)
	stopSet, stopDirectory := c.watchSet(ids[0]), c.watchDirectory(ids...)
	relayers[1].answer(http.StatusServiceUnavailable)
	relayers[2].crash()
	c.awaitActive(patience, ids[0])
	leader, epoch := c.leader()
	leader.kill() // the gateway registers all services with the next one
	_, epoch = c.leaderAfter(epoch)
	eventually(t, patience, func() bool {
		return slices.ContainsFunc(a.logged("directory written"), func(l map[string]any) bool { return l["epoch"] == float64(epoch) })
	}, "a write in epoch %d", epoch)
	require.Equal(t, ids, c.directory())
	stopDirectory()
	c.awaitEpochInRedis(epoch)
	stopSet()
}

// Of two processes with one id, the older one ends and logs why.
func TestGateway_TwoProcessesWithOneID_OlderEnds(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{})
	older, newer := c.defineAgent("edge-1"), c.defineAgent("edge-1")
	older.env["ROLLCALL_RESYNC_INTERVAL"] = "1s"
	older.write("a.json", definition(ids[0], relayers[0].url()))
	older.start()
	older.await("/readyz", http.StatusOK)
	newer.write("a.json", definition(ids[1], relayers[1].url()))
	newer.start()
	require.Equal(t, 1, older.exit(patience))
	last := older.output()[len(older.output())-1]
	require.Contains(t, last, `"msg":"gateway failed"`)
	require.Contains(t, last, `\"edge-1\" is claimed by another running gateway`)
	newer.await("/readyz", http.StatusOK)
	c.awaitDirectory(ids[1])
	c.awaitActive(patience, ids[1])
	require.Zero(t, newer.stop())
}
