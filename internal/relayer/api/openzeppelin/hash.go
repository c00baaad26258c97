package openzeppelin

import (
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// CanonicalHash returns equal hashes for requests to a target with the same meaning. The spelling of amounts and addresses
// does not matter, nor whether defaults were given or omitted. The request id and the trace id are excluded, because a
// caller may change them with each retry. It requires a request as [DecodeRequest] returns it.
func CanonicalHash(target string, r *relayer.Request) [sha256.Size]byte {
	// The form has a version because hashes are stored: if it changes, old hashes must not match by accident.
	b := append(make([]byte, 0, 1024), 1)
	b = appendPart(b, []byte(strings.ToLower(target)))
	if r.To == nil {
		b = append(b, 0)
	} else {
		b = append(append(b, 1), r.To[:]...)
	}
	for _, n := range []*big.Int{r.Value, r.GasPrice, r.MaxFee, r.MaxPriorityFee} {
		if n == nil {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		b = appendPart(b, n.Bytes())
	}
	b = appendPart(b, r.Data)
	b = binary.BigEndian.AppendUint64(b, r.GasLimit)
	b = appendPart(b, []byte(r.Speed))
	if r.ValidUntil.IsZero() {
		b = append(b, 0)
	} else {
		b = binary.BigEndian.AppendUint64(append(b, 1), uint64(r.ValidUntil.Unix()))
		b = binary.BigEndian.AppendUint32(b, uint32(r.ValidUntil.Nanosecond()))
	}
	b = appendPart(b, []byte(r.Metadata.Method))
	b = appendPart(b, []byte(r.Metadata.Orderbook))
	b = appendPart(b, []byte(r.Metadata.Trader))
	return sha256.Sum256(b)
}

// appendPart adds a part of variable length with its length, so that no two sequences of parts are equal by concatenation.
func appendPart(b, part []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
	return append(b, part...)
}
