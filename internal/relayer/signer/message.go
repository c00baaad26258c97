package signer

import (
	"context"
	"encoding/hex"
	"strconv"

	"github.com/ethereum/go-ethereum/crypto"
)

// MessageSignature is a signature in the format of OpenZeppelin Relayer's API.
type MessageSignature struct {
	R   string `json:"r"`   // 64 hex digits without 0x
	S   string `json:"s"`   // likewise
	V   uint8  `json:"v"`   // 27 or 28
	Sig string `json:"sig"` // r, s and v, 130 hex digits without 0x
}

// SignMessage signs a message like personal_sign (EIP-191): the bytes as they are; text that looks like hex is text.
// Its errors are those of SignTx that concern the signer.
func SignMessage(ctx context.Context, s Signer, message []byte) (MessageSignature, error) {
	prefix := "\x19Ethereum Signed Message:\n" + strconv.Itoa(len(message))
	return signMessage(ctx, s, [32]byte(crypto.Keccak256([]byte(prefix), message)))
}

// SignTypedData signs a structure (EIP-712), given the domain separator and the hash of the structure.
func SignTypedData(ctx context.Context, s Signer, domainSeparator, structHash [32]byte) (MessageSignature, error) {
	return signMessage(ctx, s, [32]byte(crypto.Keccak256([]byte("\x19\x01"), domainSeparator[:], structHash[:])))
}

func signMessage(ctx context.Context, s Signer, digest [32]byte) (MessageSignature, error) {
	signature, err := Sign(ctx, s, digest)
	if err != nil {
		return MessageSignature{}, err
	}
	signature[64] += 27
	sig := hex.EncodeToString(signature[:])
	return MessageSignature{R: sig[:64], S: sig[64:128], V: signature[64], Sig: sig}, nil
}
