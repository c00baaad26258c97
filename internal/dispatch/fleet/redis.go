package fleet

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/go-redis/v9"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
)

const (
	// readTimeout bounds one read of Redis.
	readTimeout = 2 * time.Second
	// maxMembers bounds the set of relayers, and pageMembers how many of them one command reads.
	maxMembers, pageMembers = 10_000, 2000
	// maxPages bounds the commands. The pages of a sparse set have fewer members.
	maxPages = 4 * maxMembers / pageMembers
	// maxIDBytes bounds the id of a service, a DNS label.
	maxIDBytes = 63
	// quiet is after how long without a message the connection is checked.
	quiet = 30 * time.Second
	// logEvery is how often a lasting failure is logged.
	logEvery = time.Minute
)

// keys are the names of the discovery cluster's keys. Its README documents them.
func (f *Fleet) activeKey() string { return f.cfg.Prefix + "relayer:active" }
func (f *Fleet) metaKey() string   { return f.cfg.Prefix + "relayer:meta" }
func (f *Fleet) eventsKey() string { return f.cfg.Prefix + "relayer:events" }
func (f *Fleet) statusKey(id string) string {
	if n, ok := number(id); ok {
		return f.cfg.Prefix + "relayer:status:" + n
	}
	return f.cfg.Prefix + "relayer:status:svc:" + id
}

// readAll reads Redis again and again. After failures it pauses longer each time.
func (f *Fleet) readAll(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = f.cfg.Poll/2, 5*time.Second
	var failedSince, logged time.Time
	for {
		next := f.cfg.Poll
		all, age, err := f.read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if !failedSince.IsZero() {
				f.log.Info("live relayers readable again", "after", time.Since(failedSince).Round(time.Millisecond))
			}
			failedSince, logged = time.Time{}, time.Time{}
			pause.Reset()
			f.metrics.read(nil, age)
			f.set(ctx, all)
		default:
			f.metrics.read(err, 0)
			if failedSince.IsZero() {
				failedSince = time.Now()
			}
			if time.Since(logged) > logEvery {
				logged = time.Now()
				f.log.Warn("live relayers cannot be read from Redis: the last known ones count", "for", f.cfg.KeepFor, "err", err)
			}
			next = pause.NextBackOff()
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-f.wake:
			timer.Stop()
		}
	}
}

// listed is a relayer that Redis lists.
type listed struct {
	url string
	err error // why it cannot be used
}

// read returns the live relayers by their ids, and the age of the mirror by its own and Redis's clock.
func (f *Fleet) read(ctx context.Context) (all map[string]listed, age time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	ids, err := f.listedIDs(ctx)
	if err != nil {
		return nil, 0, err
	}
	found := make(map[string]*redis.StringCmd, len(ids))
	var updated *redis.StringCmd
	var now *redis.TimeCmd
	if _, err = f.cfg.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range ids {
			found[id] = p.HGet(ctx, f.statusKey(id), "url")
		}
		updated, now = p.HGet(ctx, f.metaKey(), "updated_at"), p.Time(ctx)
		return nil
	}); err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it as it is
		return nil, 0, err
	}
	if at, err := time.Parse(time.RFC3339Nano, updated.Val()); err == nil {
		age = max(0, now.Val().Sub(at))
	}
	all = make(map[string]listed, len(found))
	for id, hash := range found {
		url, err := hash.Val(), hash.Err()
		if err == redis.Nil { //nolint:errorlint // see above
			url, err = f.templateURL(id)
		}
		if err == nil {
			url, err = upstream.CheckURL(url)
		}
		all[id] = listed{url, err}
	}
	return all, age, nil
}

// listedIDs returns the ids in the set of relayers, maxMembers at most. If the set has more, those that answer now are among them.
func (f *Fleet) listedIDs(ctx context.Context) ([]string, error) {
	total, err := f.cfg.Redis.SCard(ctx, f.activeKey()).Result()
	if err != nil {
		return nil, err
	}
	ids, complete, err := f.scanIDs(ctx, total > maxMembers)
	if err == nil && !complete && total <= maxMembers { // the set grew while it was read
		if total, err = f.cfg.Redis.SCard(ctx, f.activeKey()).Result(); err == nil {
			ids, complete, err = f.scanIDs(ctx, true)
		}
	}
	if err != nil {
		return nil, err
	}
	unread := 0
	if !complete {
		unread = max(1, int(total)-len(ids))
	}
	f.setUnread(unread)
	return ids, nil
}

// scanIDs returns maxMembers ids of the set at most, and whether these are all. The relayers that answer come first on request.
func (f *Fleet) scanIDs(ctx context.Context, answeringFirst bool) (ids []string, complete bool, err error) {
	found := map[string]bool{}
	add := func(id string) {
		if id != "" && len(id) <= maxIDBytes && !found[id] && len(ids) < maxMembers {
			found[id] = true
			ids = append(ids, id)
		}
	}
	if answeringFirst {
		if err := f.stillListed(ctx, add); err != nil {
			return nil, false, err
		}
	}
	cursor := uint64(0)
	for range maxPages {
		var page []string
		if page, cursor, err = f.cfg.Redis.SScan(ctx, f.activeKey(), cursor, "", pageMembers).Result(); err != nil {
			return nil, false, err
		}
		for _, id := range page {
			add(id)
		}
		if cursor == 0 {
			return ids, true, nil
		}
		if len(ids) == maxMembers {
			break
		}
	}
	return ids, false, nil
}

// stillListed calls add with the relayers that answer and are still in the set.
func (f *Fleet) stillListed(ctx context.Context, add func(id string)) error {
	answering := slices.DeleteFunc(f.list(), func(m *member) bool { return !m.answering() })
	if len(answering) == 0 {
		return nil
	}
	is := make([]*redis.BoolCmd, len(answering))
	if _, err := f.cfg.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, m := range answering {
			is[i] = p.SIsMember(ctx, f.activeKey(), m.id)
		}
		return nil
	}); err != nil {
		return err
	}
	for i, m := range answering {
		if is[i].Val() {
			add(m.id)
		}
	}
	return nil
}

// setUnread records how many members of the set are not read.
func (f *Fleet) setUnread(n int) {
	f.mu.Lock()
	before := f.unread
	f.unread = n
	f.mu.Unlock()
	switch {
	case n > 0 && before == 0:
		f.log.Warn("more relayers in Redis than are read", "set", f.activeKey(), "most", maxMembers, "unread", n)
	case n == 0 && before > 0:
		f.log.Info("all relayers that Redis lists are read again", "set", f.activeKey())
	}
}

// follow makes each message of the discovery cluster cause a read. Without the right to subscribe, the polling suffices.
func (f *Fleet) follow(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = time.Second, 30*time.Second
	var failed string
	for ctx.Err() == nil {
		err := f.receive(ctx, func() {
			failed = ""
			pause.Reset()
			select {
			case f.wake <- struct{}{}:
			default:
			}
		})
		if ctx.Err() != nil {
			return
		}
		if err.Error() != failed {
			failed = err.Error()
			f.log.Warn("no messages of changes: relayers are polled", "channel", f.eventsKey(), "err", err)
		}
		timer := time.NewTimer(pause.NextBackOff())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// receive calls changed once it is subscribed and for each message, until the connection fails.
func (f *Fleet) receive(ctx context.Context, changed func()) error {
	messages := f.cfg.Redis.Subscribe(ctx, f.eventsKey())
	stop := context.AfterFunc(ctx, func() { _ = messages.Close() })
	defer func() {
		if stop() {
			_ = messages.Close()
		}
	}()
	for patience := quiet; ; {
		message, err := messages.ReceiveTimeout(ctx, patience)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && patience == quiet {
			// Nothing has changed, or the connection was cut without a sign.
			if err := messages.Ping(ctx); err != nil {
				return err
			}
			patience = readTimeout
			continue
		}
		if err != nil {
			return err
		}
		patience = quiet
		if _, pong := message.(*redis.Pong); !pong {
			changed()
		}
	}
}
