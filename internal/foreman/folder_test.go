package foreman

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scanned is a folder and what was seen of it, with a clock that the test sets.
type scanned struct {
	t      *testing.T
	folder string
	files  map[string]file
	now    time.Time
}

func newScanned(t *testing.T) *scanned {
	return &scanned{t: t, folder: t.TempDir(), files: map[string]file{}, now: time.Now().Truncate(time.Second)}
}

// scan returns what is defined by each file, "-" for nothing known and "!" for an error.
func (s *scanned) scan() (seen string, again bool) {
	s.t.Helper()
	after, again, err := scan(s.folder, s.files, s.now)
	require.NoError(s.t, err)
	s.files = after
	var all []string
	for _, name := range []string{"a.yaml", "b.yaml", "c.yaml"} {
		if f, ok := after[name]; ok {
			text := name[:1] + ":" + ids(f.services)
			if !f.known {
				text += "-"
			}
			if f.err != nil {
				text += "!"
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, " "), again
}

// write makes a file that was last changed at the test's time.
func (s *scanned) write(name, text string) {
	s.t.Helper()
	write(s.t, s.folder, name, text)
	require.NoError(s.t, os.Chtimes(filepath.Join(s.folder, name), s.now, s.now))
}

func (s *scanned) pass(d time.Duration) { s.now = s.now.Add(d) }

func (s *scanned) sees(want string, wantAgain bool) {
	s.t.Helper()
	seen, again := s.scan()
	require.Equal(s.t, want, seen)
	require.Equal(s.t, wantAgain, again)
}

func TestFileIsReadWhenItIsQuiet(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x", "y")[:70]) // a good file as it stands, but half of it
	s.sees("a:-", true)
	s.pass(quiet / 2)
	s.write("a.yaml", define("x", "y"))
	s.pass(quiet / 2)
	s.sees("a:-", true)
	s.pass(quiet)
	s.sees("a:x,y", false)

	s.write("a.yaml", define("x"))
	s.sees("a:x,y", true)
	s.pass(quiet)
	s.sees("a:x", false)
	s.sees("a:x", false)

	s.pass(-time.Hour) // a clock ahead of this one does not keep it from being read
	s.write("a.yaml", define("z"))
	s.pass(-time.Hour)
	s.sees("a:z", false)
}

func TestFileIsGoneWhenMissingTwice(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	s.pass(time.Second)
	s.sees("a:x", false)
	path := filepath.Join(s.folder, "a.yaml")
	require.NoError(t, os.Rename(path, path+"~")) // an editor that saves
	s.sees("a:x", true)
	require.NoError(t, os.Rename(path+"~", path))
	s.pass(time.Second)
	s.sees("a:x", false)
	require.NoError(t, os.Remove(path))
	s.sees("a:x", true)
	s.pass(quiet / 2)
	s.sees("a:x", true)
	s.pass(quiet)
	s.sees("", false)
}

func TestBrokenFiles(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	s.write("b.yaml", "")
	require.NoError(t, os.Symlink("nowhere", filepath.Join(s.folder, "c.yaml")))
	s.pass(time.Second)
	s.sees("a:x b:-! c:-!", true)
	s.pass(time.Second)
	s.sees("a:x b:-! c:-!", false)
	require.ErrorContains(t, s.files["b.yaml"].err, "empty document")
	require.ErrorContains(t, s.files["c.yaml"].err, "link to a file that does not exist")
	since := s.files["b.yaml"].since

	s.write("a.yaml", "") // as an editor's or a copy's first step
	s.write("b.yaml", "#")
	s.pass(time.Second)
	s.sees("a:x! b:-! c:-!", false)
	require.NotEqual(t, since, s.files["b.yaml"].since, "another fault is news")
	since = s.files["b.yaml"].since
	s.write("b.yaml", "##")
	s.pass(time.Second)
	s.sees("a:x! b:-! c:-!", false)
	require.Equal(t, since, s.files["b.yaml"].since, "the same is not")

	s.write("a.yaml", define("y"))
	s.pass(time.Second)
	s.sees("a:y b:-! c:-!", false)
	require.NoError(t, os.Truncate(filepath.Join(s.folder, "a.yaml"), maxDocument+1))
	s.pass(time.Hour)
	s.sees("a:y! b:-! c:-!", false)
	require.ErrorContains(t, s.files["a.yaml"].err, "file of 4194305 bytes")
}

func TestWhatIsNoFile(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	require.NoError(t, os.Mkdir(filepath.Join(s.folder, "a.yaml"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(s.folder, "b.yaml"), 0o600)) // reading it would wait for ever
	s.sees("", false)
}

// A mounted ConfigMap is links to a hidden link to a hidden folder, which is replaced as a whole.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	version := func(name, text string) {
		require.NoError(t, os.Mkdir(filepath.Join(s.folder, name), 0o700))
		s.write(filepath.Join(name, "a.yaml"), text)
		require.NoError(t, os.Symlink(name, filepath.Join(s.folder, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(s.folder, "..data_tmp"), filepath.Join(s.folder, "..data")))
	}
	version("..v1", define("x"))
	require.NoError(t, os.Symlink("..data/a.yaml", filepath.Join(s.folder, "a.yaml")))
	s.pass(time.Second)
	s.sees("a:x", false)
	version("..v2", define("x", "y"))
	s.pass(time.Second)
	s.sees("a:x,y", false)
}

func TestUnreadableFolder(t *testing.T) {
	t.Parallel()
	before := map[string]file{"a.yaml": {services: some("x"), known: true}}
	after, again, err := scan(filepath.Join(t.TempDir(), "nowhere"), before, time.Now())
	require.Error(t, err)
	require.False(t, again)
	require.Equal(t, before, after)
}
