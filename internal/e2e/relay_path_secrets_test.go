package e2e

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// longToken matches the keys and secrets of a development cluster: no shorter text is one.
var longToken = regexp.MustCompile(`[0-9A-Za-z]{50,}`)

// secrets returns the secrets of the cluster: keys of accounts, API keys, signing keys, and the database's password.
func (p *relayPath) secrets() (all []string) {
	t := p.t
	files, err := filepath.Glob(filepath.Join(p.folder, "secrets", "*"))
	require.NoError(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, token := range longToken.FindAllString(string(content), -1) {
			all = append(all, strings.TrimPrefix(token, "0x"))
		}
	}
	database, err := url.Parse(p.info.DatabaseURL)
	require.NoError(t, err)
	password, ok := database.User.Password()
	require.True(t, ok)
	for _, api := range p.info.APIs {
		require.Contains(t, all, api.APIKey)
	}
	return append(all, password)
}

// requireNoSecrets fails if a log, a page of metrics or a row of the database contains a secret.
func (p *relayPath) requireNoSecrets() {
	t, secrets := p.t, p.secrets()
	pages := map[string]string{}
	logs, err := filepath.Glob(filepath.Join(p.folder, "logs", "*"))
	require.NoError(t, err)
	for _, log := range logs {
		content, err := os.ReadFile(log)
		require.NoError(t, err)
		pages[filepath.Base(log)] = string(content)
	}
	require.Contains(t, pages["api-1.log"], "API started")
	require.Contains(t, pages["consumer-1.log"], "consumer started")
	for _, base := range []string{p.info.APIs[0].URL, p.info.APIs[1].URL, p.info.Consumers[0].HTTP, p.info.Consumers[1].HTTP} {
		code, body := readPage(t, base+"/metrics")
		require.Equal(t, http.StatusOK, code)
		pages[base] = body
	}
	for page, content := range pages {
		for _, secret := range secrets {
			require.False(t, strings.Contains(content, secret), "%s contains a secret", page)
		}
	}

	conn, err := pgx.Connect(t.Context(), p.info.DatabaseURL)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables
		WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, tables, "public.relay_transactions")
	contains := func(table string, texts ...string) (found bool) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM `+table+` row, unnest($1::text[]) text WHERE position(text IN row::text) > 0)`, texts).Scan(&found))
		return found
	}
	require.True(t, contains("public.relay_transactions", "confirmed"), "the search finds what is there")
	for _, table := range tables {
		require.False(t, contains(table, secrets...), "the table %s contains a secret", table)
	}
}
