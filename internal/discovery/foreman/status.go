package foreman

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// State is the state of a service on this host.
type State string

// Held is a service before its first passed check; Offered is one offered to the directory.
const (
	Held    State = "held"
	Offered State = "offered"
)

// ServiceStatus is the foreman's status of a service.
type ServiceStatus struct {
	definition
	// File is the defining file; empty if a process advertised the service.
	File  string `json:"file,omitempty"`
	State State  `json:"state"`
	// Checks is the number of checks before the service was offered.
	Checks int `json:"checks"`
	// Checked is the time of the last of them; nil before the first.
	Checked *time.Time `json:"checked,omitempty"`
	// Reason is why the last check failed.
	Reason string `json:"reason,omitempty"`
}

// FileStatus is the foreman's status of a definition file.
type FileStatus struct {
	Name     string `json:"name"`
	Services int    `json:"services"`
	// Error is why the version on disk is not in use, and Since when that was found.
	Error string     `json:"error,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// Shadowed are ids in the file that an earlier file defines.
	Shadowed []string `json:"shadowed,omitempty"`
}

// Status is the foreman's status.
type Status struct {
	// Ready reports whether the first set is available to the gateway.
	Ready bool `json:"ready"`
	// Complete reports whether the definitions are certainly complete.
	Complete bool            `json:"complete"`
	Services []ServiceStatus `json:"services"`
	Files    []FileStatus    `json:"files"`
	// Shadowed are advertised ids that a file defines.
	Shadowed []string `json:"shadowed,omitempty"`
	// FolderError is why the folder cannot be used as it is. StateError is why the state cannot be stored, or which
	// stored advertisements were skipped at the start.
	FolderError string `json:"folder_error,omitempty"`
	StateError  string `json:"state_error,omitempty"`
}

// Status returns the current status. It may be called at any time.
func (f *Foreman) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{
		Complete: f.completeLocked(), Services: []ServiceStatus{}, Files: []FileStatus{},
		Shadowed: f.shadowed[""], FolderError: text(f.folderErr), StateError: text(errors.Join(f.stateErr, f.skippedLocked())),
	}
	select {
	case <-f.ready:
		s.Ready = true
	default:
	}
	for _, id := range slices.Sorted(maps.Keys(f.entries)) {
		s.Services = append(s.Services, f.entries[id].status())
	}
	for _, name := range slices.Sorted(maps.Keys(f.folder.files)) {
		file := f.folder.files[name]
		s.Files = append(s.Files, FileStatus{
			Name: name, Services: len(file.services), Error: text(file.err), Since: moment(file.since, file.err != nil), Shadowed: f.shadowed[name],
		})
	}
	return s
}

// skippedLocked returns the stored advertisements that are not in use as a problem.
func (f *Foreman) skippedLocked() error {
	if len(f.skipped) == 0 {
		return nil
	}
	p := &Problem{
		What: fmt.Sprintf("%d stored advertisements are not valid and are skipped", len(f.skipped)), Where: memoryName,
		How: "advertise or withdraw these services; until then no service is removed from the directory",
	}
	for _, id := range slices.Sorted(maps.Keys(f.skipped)) {
		p.Violations = append(p.Violations, fmt.Sprintf("%.100q: %v", id, f.skipped[id].fault))
	}
	return p
}

// Service returns the status of one service, and whether it is defined.
func (f *Foreman) Service(id string) (ServiceStatus, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.entries[id]
	if !ok {
		return ServiceStatus{}, false
	}
	return e.status(), true
}

func (e *entry) status() ServiceStatus {
	s := ServiceStatus{
		definition: definitionOf(e.service), File: e.origin, State: Held,
		Checks: e.checks, Checked: moment(e.checked, e.checks > 0), Reason: text(e.err),
	}
	if e.offered {
		s.State = Offered
	}
	return s
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func moment(t time.Time, known bool) *time.Time {
	if !known {
		return nil
	}
	t = t.UTC()
	return &t
}
