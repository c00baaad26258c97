package proxy

import (
	"net/http"
	"sync"

	"github.com/gorilla/websocket"
)

var upgrader = websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}

// pipe connects a caller's websocket to the node's.
type pipe struct {
	p              *Proxy
	caller, node   *websocket.Conn
	toCaller, mine sync.Mutex // one writer at a time for each

	mu    sync.Mutex
	after map[string]Fault // by the call's id, the fault of its answer
	views map[string]*view
}

func (p *Proxy) serveWebsocket(w http.ResponseWriter, r *http.Request) {
	target := p.node.Load()
	if target.ws == "" {
		http.Error(w, "no websocket", http.StatusNotFound)
		return
	}
	node, response, err := websocket.DefaultDialer.DialContext(r.Context(), target.ws, nil)
	if err != nil {
		if response != nil {
			_ = response.Body.Close()
		}
		reset(w)
		return
	}
	caller, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		_ = node.Close()
		return // the upgrader has answered
	}
	c := &pipe{p: p, caller: caller, node: node, after: map[string]Fault{}, views: map[string]*view{}}
	p.mu.Lock()
	p.conns[caller], p.conns[node] = struct{}{}, struct{}{}
	p.mu.Unlock()
	if p.ctx.Err() != nil || p.down.Load() || p.node.Load() != target { // the proxy was closed, set down or moved meanwhile
		c.cut()
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.pump(caller, c.question, &wg) })
	wg.Go(func() { c.pump(node, c.answer, &wg) })
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, caller)
	delete(p.conns, node)
}

// pump reads one side until it ends, and then closes the other.
func (c *pipe) pump(from *websocket.Conn, handle func([]byte, *sync.WaitGroup), wg *sync.WaitGroup) {
	defer c.cut()
	for {
		kind, body, err := from.ReadMessage()
		if err != nil {
			return
		}
		if kind == websocket.TextMessage {
			handle(body, wg)
		}
	}
}

func (c *pipe) cut() {
	_ = c.caller.Close()
	_ = c.node.Close()
}

func (c *pipe) tellCaller(body []byte) {
	c.toCaller.Lock()
	defer c.toCaller.Unlock()
	if c.caller.WriteMessage(websocket.TextMessage, body) != nil {
		c.cut()
	}
}

func (c *pipe) tellNode(body []byte) {
	c.mine.Lock()
	defer c.mine.Unlock()
	if c.node.WriteMessage(websocket.TextMessage, body) != nil {
		c.cut()
	}
}

// question forwards the calls that the rules allow.
func (c *pipe) question(body []byte, wg *sync.WaitGroup) {
	calls, batch, err := parse(body)
	if c.p.idle() || err != nil {
		c.tellNode(body)
		return
	}
	lagged := c.p.newView(c.p.lagging())
	var onward, refused []*message
	var whole verdict
	verdicts := make([]verdict, len(calls))
	for i, m := range calls {
		verdicts[i] = c.p.selectFault(m, len(calls))
		whole.delay += verdicts[i].delay
		switch verdicts[i].fault.Kind {
		case Cut:
			c.cut()
			return
		case Status, Reject:
			// Callers match answers by id, so a node answers a whole batch with the id of its first call.
			c.tellCaller(encode([]*message{calls[0].refusal(verdicts[i].fault)}, batch))
			return
		}
	}
	for i, m := range calls {
		v := verdicts[i]
		switch v.fault.Kind {
		case Refuse, Answer, Forget:
			refused = append(refused, m.refusal(v.fault))
			continue
		case 0:
		default:
			c.mu.Lock()
			c.after[string(m.ID)] = v.fault
			c.mu.Unlock()
		}
		onward = append(onward, lagged.question(m.change(v.fault)))
		if lagged != nil { // from here on the other pump may read it
			c.mu.Lock()
			c.views[string(m.ID)] = lagged
			c.mu.Unlock()
		}
	}
	if len(refused) > 0 {
		// On a websocket the rejected calls of a batch are answered separately: callers match answers by id.
		c.tellCaller(encode(refused, batch))
	}
	if len(onward) == 0 {
		return
	}
	encoded := encode(onward, batch)
	if whole.delay == 0 {
		c.tellNode(encoded)
		return
	}
	wg.Go(func() {
		if c.p.wait(whole.delay) {
			c.tellNode(encoded)
		}
	})
}

// answer forwards answers and notifications with their faults.
func (c *pipe) answer(body []byte, wg *sync.WaitGroup) {
	messages, batch, err := parse(body)
	c.mu.Lock()
	nothing := len(c.after) == 0 && len(c.views) == 0
	c.mu.Unlock()
	if err != nil || c.p.idle() && nothing {
		c.tellCaller(body)
		return
	}
	var kept []*message
	var whole verdict
	for _, m := range messages {
		kind := c.fate(m, &whole)
		switch kind {
		case Lose, Cut:
			c.cut()
			return
		case Hang, Omit:
			continue
		case Garble, Truncate:
			whole.fault.Kind = kind
		}
		kept = append(kept, m)
	}
	if len(kept) == 0 {
		return
	}
	encoded := spoil(encode(kept, batch), whole.fault.Kind)
	if whole.delay == 0 {
		c.tellCaller(encoded)
		return
	}
	wg.Go(func() {
		if c.p.wait(whole.delay) {
			c.tellCaller(encoded)
		}
	})
}

// fate returns the fault of an answer or a notification. It lags a notification if that is due.
func (c *pipe) fate(m *message, whole *verdict) Kind {
	if m.Method != "" { // a notification
		v := c.p.selectFault(m, 1)
		whole.delay += v.delay
		if lag := c.p.lagging(); lag > 0 {
			c.p.lagHead(m, lag)
		}
		return v.fault.Kind
	}
	id := string(m.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	fault, lagged := c.after[id], c.views[id]
	delete(c.after, id)
	delete(c.views, id)
	*m = *lagged.answer(m).alter(fault)
	return fault.Kind
}
