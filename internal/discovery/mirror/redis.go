package mirror

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed meta.lua
	metaLua string
	//go:embed read.lua
	readLua string
	//go:embed write.lua
	writeLua string
	//go:embed takeover.lua
	takeOverLua string

	readScript     = redis.NewScript(metaLua + readLua)
	writeScript    = redis.NewScript(metaLua + writeLua)
	takeOverScript = redis.NewScript(metaLua + takeOverLua)
)

// redisStore implements Store. Its scripts declare all their keys, so that they run on a Redis Cluster too.
type redisStore struct {
	client redis.UniversalClient
	keys   Keys
}

// NewStore returns the Store that the Writer uses for a client.
func NewStore(client redis.UniversalClient, prefix string) Store {
	return &redisStore{client: client, keys: Keys{prefix}}
}

func (s *redisStore) Read(ctx context.Context, kinds []string) (View, error) {
	keys := []string{s.keys.Meta(), s.keys.Services()}
	for _, kind := range kinds {
		keys = append(keys, s.keys.Active(kind))
	}
	list := "0"
	if len(kinds) > 0 {
		list = "1"
	}
	reply, err := s.run(ctx, readScript, keys, list)
	if err != nil {
		return View{}, err
	}
	view := View{Now: reply.time(0), Meta: reply.meta(1), Services: reply.list(2).strings(), Active: map[string][]string{}}
	if len(kinds) > 0 {
		for i, kind := range kinds {
			set := reply.list(3 + i)
			view.Active[kind] = set.list(1).strings()
			if set.string(0) != "ok" {
				view.Wrong = append(view.Wrong, kind)
			}
		}
	}
	return view, nil
}

// request is the first argument of write.lua.
type request struct {
	Op        Op              `json:"op"`
	Cluster   string          `json:"cluster"`
	Leader    string          `json:"leader"`
	Epoch     uint64          `json:"epoch"`
	Seq       uint64          `json:"seq"`
	BaseEpoch uint64          `json:"base_epoch"`
	BaseSeq   uint64          `json:"base_seq"`
	NotAfter  int64           `json:"not_after"` // microseconds
	Interval  int64           `json:"interval"`  // milliseconds
	Kinds     string          `json:"kinds"`
	Channel   string          `json:"channel"`
	Sets      []setRequest    `json:"sets"`
	Status    []statusRequest `json:"status"`
}

type setRequest struct {
	Kind    string `json:"kind"`
	Add     int    `json:"add"`
	Remove  int    `json:"remove"`
	Replace bool   `json:"replace"`
}

type statusRequest struct {
	Fields  int  `json:"fields"`
	Inherit bool `json:"inherit"`
}

func (s *redisStore) Write(ctx context.Context, w Write) (Reply, error) {
	req := request{
		Op: w.Op, Cluster: w.Cluster, Leader: w.Leader,
		Epoch: w.Token.Epoch, Seq: w.Token.Seq, BaseEpoch: w.Base.Epoch, BaseSeq: w.Base.Seq,
		NotAfter: w.NotAfter.UnixMicro(), Interval: w.Interval.Milliseconds(),
		Kinds: strings.Join(w.Kinds, ","), Channel: s.keys.Events(),
		Sets: []setRequest{}, Status: []statusRequest{},
	}
	keys := []string{s.keys.Meta(), s.keys.Services()}
	args := []any{nil}
	for _, set := range w.Sets {
		keys = append(keys, s.keys.Active(set.Kind))
		req.Sets = append(req.Sets, setRequest{set.Kind, len(set.Add), len(set.Remove), set.Replace})
		for _, m := range slices.Concat(set.Add, set.Remove) {
			args = append(args, m.ID, m.URL, m.Reason)
		}
	}
	for _, st := range w.Status {
		keys = append(keys, s.keys.Status(st.ID))
		req.Status = append(req.Status, statusRequest{len(st.Fields), st.Inherit})
		args = append(args, st.ID)
		for _, f := range st.Fields {
			args = append(args, f)
		}
	}
	head, err := json.Marshal(req)
	if err != nil {
		return Reply{}, err
	}
	args[0] = head
	reply, err := s.run(ctx, writeScript, keys, args...)
	if err != nil {
		return Reply{}, err
	}
	r := Reply{Outcome: Outcome(reply.string(0)), Now: reply.time(1), Held: reply.meta(2)}
	for _, size := range reply.list(3) {
		n, _ := size.(int64)
		r.Sizes = append(r.Sizes, int(n))
	}
	return r, nil
}

// run runs a script by its digest, or in full if the server does not have it.
func (s *redisStore) run(ctx context.Context, script *redis.Script, keys []string, args ...any) (values, error) {
	reply, err := script.Run(ctx, s.client, keys, args...).Slice()
	if err != nil {
		if reply, ok := errors.AsType[redis.Error](err); ok {
			return nil, &ReplyError{reply}
		}
		return nil, err
	}
	return reply, nil
}

// values is an array in a script's reply. A missing or mistyped element reads as zero, because the scripts are our
// own.
type values []any

func (v values) at(i int) any {
	if i < len(v) {
		return v[i]
	}
	return nil
}

func (v values) string(i int) string {
	s, _ := v.at(i).(string)
	return s
}

func (v values) int(i int) int64 {
	n, _ := v.at(i).(int64)
	return n
}

func (v values) list(i int) values {
	l, _ := v.at(i).([]any)
	return l
}

func (v values) time(i int) time.Time { return time.UnixMicro(v.int(i)) }

func (v values) strings() []string {
	out := make([]string, len(v))
	for i := range v {
		out[i] = v.string(i)
	}
	return out
}

func (v values) meta(i int) Meta {
	m := v.list(i)
	updated, _ := time.Parse(time.RFC3339Nano, m.string(5)) // zero if missing or malformed
	meta := Meta{
		Cluster:   m.string(0),
		Token:     Token{uint64(m.int(1)), uint64(m.int(2))},
		Leader:    m.string(3),
		Interval:  time.Duration(m.int(4)) * time.Millisecond,
		UpdatedAt: updated,
	}
	if kinds := m.string(6); kinds != "" {
		meta.Kinds = strings.Split(kinds, ",")
	}
	return meta
}

// Inspect reads relayer:meta. It returns the zero Meta if there is none.
func Inspect(ctx context.Context, client redis.UniversalClient, prefix string) (Meta, error) {
	view, err := NewStore(client, prefix).Read(ctx, nil)
	if err != nil {
		return Meta{}, fmt.Errorf("inspect mirror: %w", err)
	}
	return view.Meta, nil
}

// TakeOver assigns the mirror to the named cluster, for an operator. That cluster's leader claims it on its next
// attempt. From now on another cluster's writes are refused. The sets stay unchanged until then. TakeOver does nothing
// if the mirror already belongs to the cluster.
func TakeOver(ctx context.Context, client redis.UniversalClient, prefix, cluster string) error {
	return takeOver(ctx, client, prefix, cluster, "0")
}

// ForceTakeOver is like TakeOver, but also resets the epoch of the cluster's own mirror, for an epoch that none of its
// leaders can reach. Until the current leader claims the mirror again, older leaders are not fenced.
func ForceTakeOver(ctx context.Context, client redis.UniversalClient, prefix, cluster string) error {
	return takeOver(ctx, client, prefix, cluster, "1")
}

func takeOver(ctx context.Context, client redis.UniversalClient, prefix, cluster, force string) error {
	if cluster == "" {
		return errors.New("take over mirror: no cluster id")
	}
	if err := takeOverScript.Run(ctx, client, []string{Keys{prefix}.Meta()}, cluster, force).Err(); err != nil {
		return fmt.Errorf("take over mirror: %w", err)
	}
	return nil
}
