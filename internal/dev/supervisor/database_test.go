package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If root runs it, PostgreSQL has its files outside of the cluster's folder, and tidy removes all of them.
func TestDatabase_Tidied_LeavesNothingOutsideTheData(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := &database{data: data, port: wish(t).Postgres, urlFile: filepath.Join(data, "url")}
	require.NoError(t, d.tidy(), "before it has started")
	server, err := d.start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(d.folder) })
	require.True(t, server.stop(time.Minute))
	require.NoError(t, d.tidy())
	if strings.HasPrefix(d.folder, data) {
		require.DirExists(t, d.folder, "what is in the data stays")
		return
	}
	require.NoDirExists(t, d.folder)
	require.NoDirExists(t, filepath.Join(data, postgresID))
}
