package signature

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers.
const (
	HeaderOpenZeppelin    = "X-Signature"
	HeaderOpenZeppelinOld = "X-Oz-Signature"
	HeaderID              = "Webhook-Id"
	HeaderTimestamp       = "Webhook-Timestamp"
	HeaderSignature       = "Webhook-Signature"
)

// Sign sets the headers of both dialects for one attempt to deliver the body. id is the same in each attempt and holds
// no dot; at is the attempt's own time. Without keys only the id and the time are set.
func Sign(h http.Header, keys []Key, id string, at time.Time, body []byte) {
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	if len(keys) == 0 {
		return
	}
	h.Set(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(digest(keys[0].reveal().raw, body)))
	signatures := make([]string, len(keys))
	for i, k := range keys {
		signatures[i], _ = k.reveal().standard.Sign(id, at, body) // an HMAC cannot fail
	}
	h.Set(HeaderSignature, strings.Join(signatures, " "))
}
