package foreman

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scanned is a folder and its last scan, with a clock that the test sets.
type scanned struct {
	t      *testing.T
	folder string
	known  folder
	now    time.Time
}

func newScanned(t *testing.T) *scanned {
	return &scanned{t: t, folder: t.TempDir(), now: time.Now().Truncate(time.Second)}
}

// scan returns the definitions of each file, "-" for no known version and "!" for an error.
func (s *scanned) scan() (seen string, again bool) {
	s.t.Helper()
	after, again, err := scan(s.folder, s.known, s.now, time.Minute)
	if s.known = after; err != nil {
		return err.Error(), again
	}
	return s.defined(), again
}

// defined returns the result of the last scan, in the format of scan.
func (s *scanned) defined() string {
	var all []string
	for _, name := range []string{"a.yaml", "b.yaml", "c.yaml"} {
		if f, ok := s.known.files[name]; ok {
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
	return strings.Join(all, " ")
}

// write creates a file that was last changed at the test's time.
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

func TestScan_FileStillChanges_KeepsTheFormerVersion(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x", "y")[:70]) // valid as it is, but only half of the file
	s.sees("a:-", true)
	s.pass(settleTime / 2)
	s.write("a.yaml", define("x", "y"))
	s.pass(settleTime / 2)
	s.sees("a:-", true)
	s.pass(settleTime)
	s.sees("a:x,y", false)

	s.write("a.yaml", define("x"))
	s.sees("a:x,y", true)
	s.pass(settleTime)
	s.sees("a:x", false)
	s.sees("a:x", false)

	s.pass(-time.Hour) // a modification time in the future does not prevent reading
	s.write("a.yaml", define("z"))
	s.pass(-time.Hour)
	s.sees("a:z", false)
}

// rsync -t and image builds replace a file by another one of the same size and modification time.
func TestScan_FileReplacedWithSameSizeAndTime_IsRead(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	written := s.now
	s.pass(time.Second)
	s.sees("a:x", false)
	temp := filepath.Join(s.folder, ".a.yaml.tmp")
	require.NoError(t, os.WriteFile(temp, []byte(define("y")), 0o600))
	require.NoError(t, os.Chtimes(temp, written, written))
	require.NoError(t, os.Rename(temp, filepath.Join(s.folder, "a.yaml")))
	s.sees("a:y", false)
}

func TestScan_FileMissing_IsGoneAfterTheSettleTime(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	s.pass(time.Second)
	s.sees("a:x", false)
	path := filepath.Join(s.folder, "a.yaml")
	require.NoError(t, os.Rename(path, path+"~")) // like an editor that saves
	s.sees("a:x", true)
	require.NoError(t, os.Rename(path+"~", path))
	s.pass(time.Second)
	s.sees("a:x", false)
	require.NoError(t, os.Remove(path))
	s.sees("a:x", true)
	s.pass(settleTime / 2)
	s.sees("a:x", true)
	s.pass(settleTime)
	s.sees("", false)
}

func TestScan_BrokenFiles_KeepTheLastGoodVersion(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	s.write("b.yaml", "")
	require.NoError(t, os.Symlink("nowhere", filepath.Join(s.folder, "c.yaml")))
	s.pass(time.Second)
	s.sees("a:x b:-! c:-!", true)
	s.pass(time.Second)
	s.sees("a:x b:-! c:-!", false)
	require.ErrorContains(t, s.known.files["b.yaml"].err, "empty document")
	require.ErrorContains(t, s.known.files["c.yaml"].err, "link to a file that does not exist")
	since := s.known.files["b.yaml"].since

	s.write("a.yaml", "") // like the first step of an editor or a copy
	s.write("b.yaml", "#")
	s.pass(time.Second)
	s.sees("a:x! b:-! c:-!", false)
	require.NotEqual(t, since, s.known.files["b.yaml"].since, "another fault is news")
	since = s.known.files["b.yaml"].since
	s.write("b.yaml", "##")
	s.pass(time.Second)
	s.sees("a:x! b:-! c:-!", false)
	require.Equal(t, since, s.known.files["b.yaml"].since, "the same is not")

	s.write("a.yaml", define("y"))
	s.pass(time.Second)
	s.sees("a:y b:-! c:-!", false)
	require.NoError(t, os.Truncate(filepath.Join(s.folder, "a.yaml"), maxDocument+1))
	s.pass(time.Hour)
	s.sees("a:y! b:-! c:-!", false)
	require.ErrorContains(t, s.known.files["a.yaml"].err, "file of 4194305 bytes")
}

func TestLoad_NotAFile(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	require.NoError(t, os.Mkdir(filepath.Join(s.folder, "a.yaml"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(s.folder, "b.yaml"), 0o600)) // reading it would block forever
	s.sees("", false)
}

// A mounted ConfigMap, which is links to a hidden link to a hidden folder that is replaced as a whole, must be read.
func TestScan_MountedConfigMap_IsRead(t *testing.T) {
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

func TestScan_UnreadableFolder_ChangesNothing(t *testing.T) {
	t.Parallel()
	before := folder{files: map[string]file{"a.yaml": {services: some("x"), known: true}}}
	after, again, err := scan(filepath.Join(t.TempDir(), "nowhere"), before, time.Now(), 0)
	require.Error(t, err)
	require.False(t, again)
	require.Equal(t, before, after)
}

func TestScan_FolderEmptied_KeepsServicesForTheGracePeriod(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	s.write("b.yaml", define("y"))
	s.pass(time.Second)
	s.sees("a:x b:y", false)
	remove := func(name string) { require.NoError(t, os.Remove(filepath.Join(s.folder, name))) }

	// All files missing at once may be a deployment that will restore them.
	remove("a.yaml")
	remove("b.yaml")
	const held = "all 2 definition files gone at once; the services they defined stay for 1m0s; " +
		"put them back; to define nothing at once, leave a file with services: []"
	s.sees(held, false)
	s.pass(30 * time.Second)
	s.sees(held, false)

	// Files restored one by one: missing ones keep their services for the same grace.
	s.write("b.yaml", define("z"))
	s.pass(time.Second)
	const partly = "all definition files gone at once, 1 of them not back yet; the services they defined stay for 1m0s in a.yaml; " +
		"put them back; to define nothing at once, leave them with services: []"
	s.sees(partly, false)
	s.pass(28 * time.Second)
	s.sees(partly, false)
	require.Equal(t, "a:x b:z", s.defined())
	s.pass(time.Second)
	s.sees("a:x b:z", true)
	s.pass(settleTime)
	s.sees("b:z", false)

	// When all files are back, one that is removed alone is gone at once again.
	s.write("a.yaml", define("x"))
	s.pass(time.Second)
	s.sees("a:x b:z", false)
	remove("a.yaml")
	remove("b.yaml")
	s.sees(held, false)
	s.write("a.yaml", define("x"))
	s.write("b.yaml", define("y"))
	s.pass(time.Second)
	s.sees("a:x b:y", false)
	remove("a.yaml")
	s.sees("a:x b:y", true)
	s.pass(settleTime)
	s.sees("b:y", false)

	// A last file that was removed alone was removed on purpose.
	remove("b.yaml")
	s.sees("b:y", true)
	s.pass(settleTime)
	s.sees("", false)
	s.sees("", false)

	s.write("a.yaml", define("x"))
	s.write("b.yaml", define("y"))
	s.pass(time.Second)
	s.sees("a:x b:y", false)
	remove("a.yaml")
	remove("b.yaml")
	s.sees(held, false)
	s.pass(time.Minute)
	s.sees("a:x b:y", true)
	s.pass(settleTime)
	s.sees("", false)
}

// An unmounted volume leaves its empty mount point, which must keep the definitions.
func TestScan_FolderUnmounted_KeepsServices(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	s.pass(time.Second)
	s.sees("a:x", false)
	mounted := s.folder
	s.folder = t.TempDir()
	const held = "no definition file, and no longer the folder that had them; the services they defined stay; " +
		"mount or fill the folder; to define nothing, leave a file with services: [] in it"
	s.sees(held, false)
	s.pass(24 * time.Hour)
	s.sees(held, false)
	mountPoint := s.folder
	s.folder = mounted
	s.sees("a:x", false)
	s.folder = mountPoint
	s.sees(held, false)
	s.write("b.yaml", "services: []")
	s.pass(time.Second)
	s.sees("a:x b:", true)
	s.pass(settleTime)
	s.sees("b:", false)

	// After a restart the earlier folder is unknown.
	s.known = folder{files: map[string]file{"a.yaml": {services: some("x"), known: true}}}
	require.NoError(t, os.Remove(filepath.Join(s.folder, "b.yaml")))
	seen, _ := s.scan()
	require.Contains(t, seen, "no definition file, and there were some when this last ran; the services they defined stay")
	s.known = folder{files: map[string]file{"a.yaml": {services: some(), known: true}}}
	s.sees("a:", true)
}

func TestScan_TooManyFiles_ReadsKnownOnesFirst(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.known.files = map[string]file{"c.yaml": {services: some("x"), known: true}}
	for i := range maxFiles {
		s.write(fmt.Sprintf("b-%05d.json", i), "[]")
	}
	s.write("c.yaml", define("x"))
	s.pass(time.Second)
	const refused = "more than 10000 definition files: 1 that came last are not read in b-09999.json; put more services into each file"
	for range 3 { // known files come first, whatever their names
		s.sees(refused, false)
		require.Len(t, s.known.files, maxFiles)
		require.Equal(t, "x", ids(s.known.files["c.yaml"].services))
		s.pass(time.Minute)
	}
	s.write("a.yaml", define("y"))
	s.pass(time.Second)
	seen, _ := s.scan()
	require.Contains(t, seen, "2 that came last are not read in a.yaml")
	require.NotContains(t, s.known.files, "a.yaml")
	require.NoError(t, os.Remove(filepath.Join(s.folder, "b-00000.json")))
	require.NoError(t, os.Remove(filepath.Join(s.folder, "b-00001.json")))
	s.scan()
	s.pass(settleTime)
	seen, _ = s.scan()
	require.NotContains(t, seen, "more than")
	require.Equal(t, "y", ids(s.known.files["a.yaml"].services))
}
