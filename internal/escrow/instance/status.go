package instance

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	"github.com/rollcall-dev/rollcall/internal/process"
)

// Health returns the health of the process. It is ready while it reaches the database: a process that reads nothing may still publish, and
// one that publishes nothing may still read. A halted chain is degraded, because another process could do no more.
func (m *Monitor) Health() process.Health {
	m.mu.Lock()
	database, counts, halted := m.database, m.counts, m.overview.Halted
	m.mu.Unlock()
	h := process.Health{Status: "healthy", Ready: database == "", Components: map[string]string{"database": database, "counts": counts, "chain": ""}}
	if halted != "" {
		h.Components["chain"] = "halted"
	}
	for name, problem := range m.cfg.Problems {
		h.Components[name] = ""
		if problem() != nil {
			h.Components[name] = "unavailable"
		}
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(h.Components)) {
		if p := h.Components[name]; p != "" {
			problems = append(problems, name+": "+p)
			h.Status = "degraded"
		}
	}
	if !h.Ready {
		h.Status = "unhealthy"
	}
	h.Reason = strings.Join(problems, "; ")
	return h
}

// Status is the state of the chain and of its instances, as this process has read it last.
type Status struct {
	Instance string         `json:"instance"`
	Version  string         `json:"version"`
	Health   process.Health `json:"health"`
	Settings
	Halted     string     `json:"halted"` // why; "" if the chain is not halted
	Leading    bool       `json:"leading"`
	StartBlock uint64     `json:"start_block"`
	Cursor     *Block     `json:"cursor"` // the newest block whose events are stored; null before the first
	Final      *Block     `json:"final"`  // the newest final block; null before the first
	LagBlocks  uint64     `json:"lag_blocks"`
	LagSeconds float64    `json:"lag_seconds"`
	Escrows    int        `json:"escrows"`
	Parked     int        `json:"parked"`
	Instances  []Instance `json:"instances"`
}

// Block is a block of a Status.
type Block struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
}

// Instance is an instance of a Status.
type Instance struct {
	ID           string            `json:"id"`
	Version      string            `json:"version"`
	Host         string            `json:"host"`
	PID          int               `json:"pid"`
	Partition    *Partition        `json:"partition"` // null: all
	Leading      bool              `json:"leading"`
	StartedAt    timefmt.Timestamp `json:"started_at"`
	HeartbeatAge float64           `json:"heartbeat_age_seconds"`
}

// Partition is a static partition.
type Partition struct {
	Number int `json:"number"`
	Total  int `json:"total"`
}

// Status returns the status as of the last reading.
func (m *Monitor) Status() Status {
	m.mu.Lock()
	o, totals := m.overview, m.totals
	m.mu.Unlock()
	s := Status{
		Instance: m.cfg.Self.ID, Version: m.cfg.Self.Version, Health: m.Health(), Settings: m.cfg.Settings, Halted: o.Halted, Leading: m.cfg.Leading(),
		StartBlock: o.StartBlock, Cursor: block(o.Cursor), Final: block(o.Final), LagBlocks: m.lag(o), LagSeconds: o.CursorAge.Seconds(),
		Escrows: totals.Registered, Parked: totals.Parked, Instances: []Instance{},
	}
	for _, i := range o.Instances {
		s.Instances = append(s.Instances, instanceOf(i))
	}
	return s
}

// lag returns how many blocks are not stored yet that the reader has found or this process has looked for: while no process reads the
// chain, or the one that does finds no block, only the latter grows.
func (m *Monitor) lag(o store.Overview) uint64 {
	newest, stored := m.cfg.Newest(), max(o.Cursor.Number, max(o.StartBlock, 1)-1)
	return max(o.Lag(), newest-min(newest, stored))
}

func block(b events.Block) *Block {
	if b.Hash == (common.Hash{}) {
		return nil
	}
	return &Block{b.Number, b.Hash}
}

func instanceOf(i store.Instance) Instance {
	one := Instance{
		ID: i.ID, Version: i.Version, Host: i.Host, PID: i.PID, Leading: i.Leader, StartedAt: timefmt.Timestamp{Time: i.StartedAt}, HeartbeatAge: i.Age.Round(time.Millisecond).Seconds(),
	}
	if i.Total > 0 {
		one.Partition = &Partition{i.Number, i.Total}
	}
	return one
}

// ServeHTTP answers with the status in JSON.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(m.Status()) // the client has gone
}
