package foreman

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// persistedState is the state that survives a restart.
type persistedState struct {
	// Format is 1.
	Format int `json:"format"`
	// Files are the last good versions of definition files, by name.
	Files map[string][]definition `json:"files"`
	// Advertised are the advertisements that were not withdrawn.
	Advertised []definition `json:"advertised"`
}

const (
	memoryFormat = 1
	memoryName   = "foreman.json"
)

// loadState reads the stored state of the folder. It returns fs.ErrNotExist if there is none. The caller checks the
// definitions.
func loadState(folder string) (persistedState, error) {
	path := filepath.Join(folder, memoryName)
	data, err := os.ReadFile(path)
	if err != nil {
		return persistedState{}, err
	}
	var m persistedState
	err = json.Unmarshal(data, &m) // fields of a later version are ignored
	if err == nil && m.Format != memoryFormat {
		err = fmt.Errorf("has format %d, this version reads %d", m.Format, memoryFormat)
	}
	if err != nil {
		return persistedState{}, fmt.Errorf("%s: %w; remove it to start without the advertisements it holds: "+
			"those that are not made again soon are then deregistered", path, err)
	}
	return m, nil
}

// saveState writes m atomically: after a crash at any time the folder holds either the old or the new state.
func saveState(folder string, m persistedState) error {
	m.Format = memoryFormat
	data, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(folder, memoryName+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // fails, as intended, after the rename
	_, err = temp.Write(append(data, '\n'))
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), filepath.Join(folder, memoryName)); err != nil {
		return err
	}
	return syncFolder(folder)
}

// writable returns an error if the folder is not writable.
func writable(folder string) error {
	temp, err := os.CreateTemp(folder, memoryName+".*")
	if err != nil {
		return err
	}
	return errors.Join(temp.Close(), os.Remove(temp.Name()))
}

// syncFolder makes a rename in the folder durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeTemp removes temporary files that crashes during writing left.
func removeTemp(folder string) error {
	left, err := filepath.Glob(filepath.Join(folder, memoryName+".*"))
	for _, path := range left {
		if e := os.Remove(path); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func services(definitions []definition) []*rollcallv1.Service {
	all := make([]*rollcallv1.Service, len(definitions))
	for i, d := range definitions {
		all[i] = d.service()
	}
	return all
}

func definitions(services []*rollcallv1.Service) []definition {
	all := make([]definition, len(services))
	for i, s := range services {
		all[i] = definitionOf(s)
	}
	return all
}
