package foreman

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// settleTime is how long a file must be unchanged before it is read, and missing before it counts as gone:
	// editors and copies write in several steps.
	settleTime = 100 * time.Millisecond
	// maxFiles is the maximum number of definition files in a folder: as many as services.
	maxFiles = rollcallv1.MaxServicesPerCall
)

// file is the state of a definition file. It is immutable; a change makes a new one.
type file struct {
	// services are the file's last good version. known reports whether there ever was one.
	services []*rollcallv1.Service
	known    bool
	err      error     // why the version on disk is not in use
	since    time.Time // time of err
	read     signature // of the version of services or err
	missing  time.Time // when it was first missing; zero if it exists
	// waiting are the services of a good version that does not fit the limits; nil if there is none.
	waiting []*rollcallv1.Service
}

// broken returns the file with err, which makes the version read unusable.
func (f file) broken(err error, read signature, now time.Time) file {
	if f.err == nil || f.err.Error() != err.Error() {
		f.err, f.since = err, now
	}
	f.read, f.missing, f.waiting = read, time.Time{}, nil
	return f
}

// signature identifies a version of a file; the zero value is that of none.
type signature struct{ info fs.FileInfo }

// equals reports whether both are of the same version. Size and modification time are not enough: cp -p, rsync -t and
// builds with a fixed modification time replace a file by one of the same size and time.
func (s signature) equals(other signature) bool {
	return s.written(other) && os.SameFile(s.info, other.info) && changeTime(s.info).Equal(changeTime(other.info))
}

// written reports whether both may be of the same version. Some file systems give a file another identity at each look.
func (s signature) written(other signature) bool {
	a, b := s.info, other.info
	return a != nil && b != nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}

// folder is the state of the definition files. It is immutable; a change makes a new one.
type folder struct {
	files map[string]file
	// lastDir is the folder itself when it last held a file; nil if that was in an earlier run.
	lastDir fs.FileInfo
	// emptied is when all files were found missing at once; zero if they were not, or are all back.
	emptied time.Time
}

// scan reads the definition files of the folder at path. before is the previous state. scan returns the new state, and
// whether it must run again after settleTime. It returns an error if the folder could not be read completely; the
// previous state of the rest is kept.
func scan(path string, before folder, now time.Time, grace time.Duration) (after folder, again bool, err error) {
	home, entries, err := list(path)
	if err != nil {
		return before, false, err
	}
	after = folder{files: make(map[string]file, len(before.files)), lastDir: home}
	if len(entries) == 0 {
		if err := before.checkDirReplaced(home); err != nil {
			return before, false, err
		}
		after.lastDir = before.lastDir // until it holds a file again
		if before.services() > 0 && len(before.files) > 1 {
			if after.emptied = before.emptied; after.emptied.IsZero() {
				after.emptied = now
			}
			if left := grace - now.Sub(after.emptied); left > 0 {
				after.files = before.files
				return after, false, &Problem{
					What: fmt.Sprintf("all %d definition files gone at once; the services they defined stay for %v", len(before.files), grace),
					How:  "put them back; to define nothing at once, leave a file with services: []",
				}
			}
		}
	}
	room := maxFiles
	for _, e := range entries {
		if _, known := before.files[e.Name()]; known {
			room--
		}
	}
	var first string
	left := 0
	for _, e := range entries {
		was, known := before.files[e.Name()]
		if !known {
			if room <= 0 {
				first = cmp.Or(first, e.Name())
				left++
				continue
			}
			room--
		}
		format, _ := formatOf(e.Name())
		f, unsettled := readFile(filepath.Join(path, e.Name()), format, was, now)
		again = again || unsettled
		if f != nil {
			after.files[e.Name()] = *f
		}
	}
	if left > 0 {
		err = &Problem{
			What: fmt.Sprintf("more than %d definition files: %d that came last are not read", maxFiles, left), Where: first,
			How: "put more services into each file",
		}
	}
	// A deployment that removed all files restores them one by one.
	comingBack := !before.emptied.IsZero() && now.Sub(before.emptied) < grace
	var held []string
	for name, f := range before.files {
		if _, there := after.files[name]; there {
			continue
		}
		if comingBack {
			after.files[name], after.emptied = f, before.emptied
			held = append(held, name)
			continue
		}
		if f.missing.IsZero() {
			f.missing = now
		}
		if now.Sub(f.missing) < settleTime {
			after.files[name] = f
			again = true
		}
	}
	if len(held) > 0 && err == nil {
		err = &Problem{
			What: fmt.Sprintf("all definition files gone at once, %d of them not back yet; the services they defined stay for %v", len(held), grace),
			How:  "put them back; to define nothing at once, leave them with services: []", Where: slices.Min(held),
		}
	}
	return after, again, err
}

// list returns a folder and its entries with names of definition files, sorted by name.
func list(path string) (home fs.FileInfo, entries []fs.DirEntry, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if home, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	all, err := f.ReadDir(-1)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range all {
		if _, ok := formatOf(e.Name()); ok {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return home, entries, nil
}

// checkDirReplaced returns an error if an empty folder does not mean empty definitions, because it is not the folder
// that had the files, for example after an unmount. After a restart the earlier folder is unknown.
func (f folder) checkDirReplaced(home fs.FileInfo) error {
	if f.services() == 0 || f.lastDir != nil && os.SameFile(f.lastDir, home) {
		return nil
	}
	what := "no definition file, and no longer the folder that had them"
	if f.lastDir == nil {
		what = "no definition file, and there were some when this last ran"
	}
	return &Problem{
		What: fmt.Sprintf("%s; the services they defined stay", what),
		How:  "mount or fill the folder; to define nothing, leave a file with services: [] in it",
	}
}

// services returns the number of services that the files define.
func (f folder) services() (n int) {
	for _, file := range f.files {
		n += len(file.services)
	}
	return n
}

// formatOf reports whether a file name is that of a definition file. Hidden files belong to editors and Kubernetes.
func formatOf(name string) (Format, bool) {
	if strings.HasPrefix(name, ".") {
		return 0, false
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json":
		return JSON, true
	case ".yaml", ".yml":
		return YAML, true
	}
	return 0, false
}

// readFile returns the new state of a file, nil if it is not a regular file, and whether the file may change in a
// moment.
func readFile(path string, format Format, before file, now time.Time) (after *file, unsettled bool) {
	broken := func(err error, read signature) *file {
		f := before.broken(err, read, now)
		return &f
	}
	before.missing = time.Time{}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The file is gone since it was listed, or it is a link to a missing file.
		news := before.err == nil
		return broken(&Problem{What: "link to a file that does not exist", How: "repair or remove it"}, signature{}), news
	case err != nil:
		return broken(err, signature{}), false
	case !info.Mode().IsRegular():
		return nil, false
	}
	sig := signature{info}
	if sig.equals(before.read) {
		return &before, false
	}
	if age := now.Sub(info.ModTime()); age >= 0 && age < settleTime {
		return &before, true
	}
	if info.Size() > maxDocument {
		return broken(&Problem{What: fmt.Sprintf("file of %d bytes", info.Size()), How: fmt.Sprintf("split it: at most %d are read", maxDocument)}, sig), false
	}
	data, err := read(path)
	if err != nil {
		return broken(err, signature{}), false
	}
	if info, err := os.Stat(path); err != nil || !sig.written(signature{info}) {
		return &before, true // it changed in the meantime
	}
	services, err := ParseDefinitions(data, format)
	if err != nil {
		return broken(err, sig), false
	}
	return &file{services: services, known: true, read: sig}, false
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxDocument+1))
}
