package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
)

// message is a call, an answer or a notification.
type message struct {
	Version string          `json:"jsonrpc,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// parse decodes one message or a batch of them.
func parse(body []byte) (messages []*message, batch bool, err error) {
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] == '[' {
		return messages, true, json.Unmarshal(body, &messages)
	}
	m := new(message)
	return []*message{m}, false, json.Unmarshal(body, m)
}

// encode reverses parse. No messages are an empty text, or an empty batch.
func encode(messages []*message, batch bool) []byte {
	var v any = messages
	switch {
	case !batch && len(messages) == 0:
		return nil
	case !batch:
		v = messages[0]
	case messages == nil:
		v = []*message{}
	}
	b, err := json.Marshal(v)
	if err != nil { // parsed messages can be encoded
		panic(err)
	}
	return b
}

// refusal returns an error answer to a call, or the result of an Answer or a Forget.
func (m *message) refusal(f Fault) *message {
	if tx := (Call{Method: m.Method, Params: m.Params}).Tx(); f.Kind == Forget && tx != nil {
		return &message{Version: "2.0", ID: m.ID, Result: json.RawMessage(`"` + tx.Hash().Hex() + `"`)}
	}
	if f.Kind == Answer {
		return &message{Version: "2.0", ID: m.ID, Result: json.RawMessage(f.Result)}
	}
	text := cmp.Or(f.Message, "refused")
	code := cmp.Or(f.Code, -32000)
	if f.Kind == Status {
		code = cmp.Or(f.Code, 503)
	}
	body, err := json.Marshal(map[string]any{"code": code, "message": text})
	if err != nil {
		panic(err)
	}
	return &message{Version: "2.0", ID: m.ID, Error: body}
}

// change applies the fault to a call if it is a Change.
func (m *message) change(f Fault) *message {
	if f.Kind != Change || f.Params == nil {
		return m
	}
	changed := *m
	changed.Params = f.Params(m.Params)
	return &changed
}

// alter applies the fault to the answer to a call if it is a Change.
func (m *message) alter(f Fault) *message {
	if f.Kind != Change || f.Alter == nil || m.Result == nil {
		return m
	}
	altered := *m
	altered.Result = f.Alter(m.Result)
	return &altered
}

// spoil makes an answer invalid.
func spoil(body []byte, k Kind) []byte {
	switch k {
	case Garble:
		return []byte("<html><body>upstream went away</body></html>")
	case Truncate:
		return body[:len(body)/2]
	}
	return body
}
