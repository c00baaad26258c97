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

const version = "v1,"

// Sign sets the headers of both dialects for one attempt to deliver the body. id is the same in each attempt and holds
// no dot; at is the attempt's own time. Without keys only the id and the time are set.
func Sign(h http.Header, keys []Key, id string, at time.Time, body []byte) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, timestamp)
	if len(keys) == 0 {
		return
	}
	h.Set(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(digest(keys[0].reveal().raw, body)))
	signatures := make([]string, len(keys))
	for i, k := range keys {
		signatures[i] = version + base64.StdEncoding.EncodeToString(standardDigest(k, id, timestamp, body))
	}
	h.Set(HeaderSignature, strings.Join(signatures, " "))
}

func standardDigest(k Key, id, timestamp string, body []byte) []byte {
	return digest(k.reveal().standard, []byte(id), []byte("."), []byte(timestamp), []byte("."), body)
}
