package forward

import (
	"slices"

	"github.com/ethereum/go-ethereum/crypto"
)

// wordSize is the size of a word of the ABI.
const wordSize = 32

var executeSelector = crypto.Keccak256([]byte("execute((address,address,uint256,uint256,uint48,bytes,bytes))"))[:4]

// Calldata returns the data of a transaction that makes the forwarder execute the request. The nonce is not part of it: the
// contract uses its own. The signature is converted to the form that the contract accepts. Errors: *FieldError,
// *SignatureError.
func Calldata(r *Request) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	signature, err := parseSignature(r.Signature)
	if err != nil {
		return nil, err
	}
	signature[64] += 27
	const head = 7 * wordSize // of the tuple: five values and two offsets, which count from its start
	return slices.Concat(
		executeSelector, uintWord(wordSize), // the offset of the tuple
		addressWord(r.From), addressWord(r.To), bigWord(r.Value), uintWord(r.Gas), uintWord(r.Deadline),
		uintWord(head), uintWord(uint64(head+wordSize+padded(len(r.Data)))),
		bytesTail(r.Data), bytesTail(signature[:]),
	), nil
}

// bytesTail encodes the length of b, and b with zeros up to a whole word.
func bytesTail(b []byte) []byte {
	tail := make([]byte, wordSize+padded(len(b)))
	copy(tail, uintWord(uint64(len(b))))
	copy(tail[wordSize:], b)
	return tail
}

func padded(n int) int { return (n + wordSize - 1) / wordSize * wordSize }
