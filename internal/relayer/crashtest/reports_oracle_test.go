package crashtest

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// historyStart is the start of the histories in these tests.
var historyStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// answered returns an answer to a GET that was sent in a second and received half a second later.
func answered(second int, status relayer.APIStatus, hash string) report {
	asked := historyStart.Add(time.Duration(second) * time.Second)
	return report{source: "GET", status: status, hash: hash, asked: asked, received: asked.Add(time.Second / 2)}
}

func hooked(second, revision int, status relayer.APIStatus, hash string) report {
	return report{
		source: "webhook", status: status, hash: hash, revision: revision, delivery: string(rune('a' + revision)),
		received: historyStart.Add(time.Duration(second) * time.Second),
	}
}

func TestJudge_ReportsAndOutcome_AreCompared(t *testing.T) {
	t.Parallel()
	confirmed := outcome{status: relayer.APIConfirmed, hash: "0x1", revision: 3, executions: 1, mined: true}
	canceled := outcome{status: relayer.APICanceled, hash: "0x2", revision: 3, mined: true}
	path := func(more ...report) []report {
		return append([]report{
			hooked(1, 1, relayer.APISubmitted, "0x1"), hooked(2, 2, relayer.APIMined, "0x1"), hooked(3, 3, relayer.APIConfirmed, "0x1"),
		}, more...)
	}
	for _, c := range []struct {
		name    string
		reports []report
		end     outcome
		reorg   int    // the second in which the reorganization ended; 0: none
		wrong   string // "" for a history without contradictions
	}{
		{"usual path", path(answered(5, relayer.APIConfirmed, "0x1")), confirmed, 0, ""},
		{"late answer to an early question", path(report{
			source: "GET", status: relayer.APISubmitted, asked: historyStart, received: historyStart.Add(time.Minute),
		}), confirmed, 0, ""},
		{"hash that a replacement took over", append([]report{hooked(0, 0, relayer.APISubmitted, "0x9")}, path()...), confirmed, 0, ""},
		{"canceled without bytes", []report{hooked(1, 1, relayer.APICanceled, "")}, outcome{status: relayer.APICanceled, revision: 1}, 0, ""},
		{"confirmed, but canceled", path(), canceled, 0, "ended as canceled"},
		{"canceled, but executed", []report{hooked(1, 3, relayer.APICanceled, "0x2")}, confirmed, 0, "ended as confirmed"},
		{"another hash", path(answered(5, relayer.APIConfirmed, "0x7")), confirmed, 0, "ended with the hash 0x1"},
		{"answer goes back from final", path(answered(5, relayer.APIMined, "0x1")), confirmed, 0, "GET mined"},
		{"answer goes back from mined", append(path()[:2:2], answered(5, relayer.APISubmitted, "0x1"), path()[2]), confirmed, 0, "GET submitted"},
		{"webhook goes back from mined", []report{
			hooked(1, 1, relayer.APIMined, "0x1"), hooked(2, 2, relayer.APISubmitted, "0x1"), hooked(3, 3, relayer.APIConfirmed, "0x1"),
		}, confirmed, 0, "webhook submitted"},
		{"webhook goes back from mined in a reorganization", []report{
			hooked(1, 1, relayer.APIMined, "0x1"), hooked(2, 2, relayer.APISubmitted, "0x1"), hooked(3, 3, relayer.APIConfirmed, "0x1"),
		}, confirmed, 2, ""},
		{"answer goes back from final in a reorganization", []report{
			answered(1, relayer.APIConfirmed, "0x8"), answered(2, relayer.APISubmitted, "0x8"), hooked(4, 3, relayer.APIConfirmed, "0x1"),
		}, confirmed, 2, ""},
		{"revision does not rise in a reorganization", []report{
			hooked(1, 2, relayer.APIMined, "0x1"), hooked(2, 2, relayer.APISubmitted, "0x1"), hooked(3, 3, relayer.APIConfirmed, "0x1"),
		}, confirmed, 2, "does not rise"},
		{"final after a reorganization and not the end", []report{
			answered(5, relayer.APIConfirmed, "0x8"), hooked(6, 3, relayer.APICanceled, "0x2"),
		}, canceled, 2, "ended as canceled"},
		{"revision repeated", append(path(), hooked(4, 3, relayer.APIConfirmed, "0x1")), confirmed, 0, "does not rise"},
		{"revision beyond the last", append(path(), hooked(4, 4, relayer.APIConfirmed, "0x1")), confirmed, 0, "last revision is 3"},
		{"last webhook is missing", path()[:2], confirmed, 0, "last webhook was"},
		{"no webhook", []report{answered(1, relayer.APIConfirmed, "0x1")}, confirmed, 0, "no webhook"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var reorganized time.Time
			if c.reorg > 0 {
				reorganized = historyStart.Add(time.Duration(c.reorg) * time.Second)
			}
			wrong := strings.Join(contradictions(c.reports, c.end, reorganized), "\n")
			if c.wrong == "" {
				require.Empty(t, wrong)
			} else {
				require.Contains(t, wrong, c.wrong)
			}
		})
	}
}

func TestOutcome_StoreAndChainDisagree_IsReported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end   outcome
		wrong string
	}{
		{outcome{status: relayer.APIConfirmed, hash: "0x1", executions: 1, mined: true}, ""},
		{outcome{status: relayer.APIExpired, hash: "0x1", mined: true}, ""},
		{outcome{status: relayer.APIExpired}, ""},
		{outcome{status: relayer.APIConfirmed, hash: "0x1", executions: 2, mined: true}, "executed 2 times"},
		{outcome{status: relayer.APIConfirmed, hash: "0x1", mined: true}, "executed 0 times"},
		{outcome{status: relayer.APICanceled, hash: "0x1", executions: 1, mined: true}, "executed 1 times"},
		{outcome{status: relayer.APICanceled, hash: "0x1"}, "not mined"},
		{outcome{status: relayer.APIConfirmed, executions: 1}, "not mined"},
		{outcome{status: relayer.APIMined, hash: "0x1", mined: true}, "not final"},
	} {
		wrong := strings.Join(c.end.problems(), "\n")
		if c.wrong == "" {
			require.Empty(t, wrong, "%+v", c.end)
		} else {
			require.Contains(t, wrong, c.wrong, "%+v", c.end)
		}
	}
}

func TestReportLog_AnswersAndWebhooks_AreRecordedOnce(t *testing.T) {
	t.Parallel()
	l := newReportLog()
	tx, err := l.answer("POST", historyStart, []byte(`{"success":true,"data":{"id":"tx","status":"pending","hash":null}}`))
	require.NoError(t, err)
	require.Equal(t, "tx", tx)
	url := strings.TrimPrefix(l.receive(t)[0], "RELAYER_WEBHOOK_URL=")
	const body = `{"id":"1","event":"transaction_update","payload":{"id":"tx","status":"confirmed","hash":"0x1","revision":2}}`
	for range 2 { // deliveries may be repeated
		response, err := http.Post(url, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	require.Equal(t, "reports of 1 transactions: POST 1, webhook 1, webhook (repeated) 1", l.summary())
	end := outcome{status: relayer.APIConfirmed, hash: "0x1", revision: 2, executions: 1, mined: true}
	require.Empty(t, l.contradictions(map[string]outcome{"tx": end}, time.Time{}))
	require.Len(t, l.contradictions(map[string]outcome{}, time.Time{}), 1, "it is not stored")
	end.executions = 2
	require.Len(t, l.contradictions(map[string]outcome{"tx": end}, time.Time{}), 1)
}
