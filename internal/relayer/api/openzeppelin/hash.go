package openzeppelin

import (
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// CanonicalHash tells whether two requests to a target mean the same: however their amounts and addresses were spelled,
// and whether defaults were given or left out. The request's id and the trace's are not part of it, since a caller that
// asks again may well number its tries. It needs a request as [DecodeRequest] makes it.
func CanonicalHash(target string, r *relayer.Request) [sha256.Size]byte {
	// A version, since hashes are stored: should the form ever change, old ones must not match by accident.
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
		b = binary.BigEndian.AppendUint64(append(b, 1), uint64(r.ValidUntil.Unix())) //nolint:gosec // only compared
		b = binary.BigEndian.AppendUint32(b, uint32(r.ValidUntil.Nanosecond()))      //nolint:gosec // below 1e9
	}
	b = appendPart(b, []byte(r.Metadata.Method))
	b = appendPart(b, []byte(r.Metadata.Orderbook))
	b = appendPart(b, []byte(r.Metadata.Trader))
	return sha256.Sum256(b)
}

// appendPart adds something whose length varies, so that no two sequences of parts look alike.
func appendPart(b, part []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(part))) //nolint:gosec // a body is far smaller
	return append(b, part...)
}
