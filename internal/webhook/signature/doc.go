// Package signature signs webhooks and verifies them, in two dialects that one request may carry:
//
//   - OpenZeppelin Relayer's: X-Signature is the standard base64 of HMAC-SHA256 over the raw body. Older documents call
//     the header x-oz-signature; some senders write the digest in hex, or prefix it with "sha256=". Verify accepts all of
//     these. Only the body is signed, so its top-level "timestamp" is the only signed time.
//   - Standard Webhooks': webhook-signature is a list, separated by spaces, of "v1," and the standard base64 of
//     HMAC-SHA256 over "id.timestamp.body", with the other two from webhook-id and webhook-timestamp (Unix seconds).
//     The library of Standard Webhooks computes and compares it. The other dialect is not in the library.
//
// # Keys
//
// A key is a string of at least 32 characters, and its bytes are the HMAC's key in both dialects. A key that begins
// with "whsec_" has the format of Standard Webhooks' libraries: for that dialect the HMAC's key is the decoded base64
// after the prefix. A receiver with such a library and a key without the prefix configures the library with "whsec_"
// and the base64 of the key.
//
// Keys are rotated by having two of them for a while. Standard Webhooks' header is signed with all keys. X-Signature
// can hold one signature only, that of the first key. So an operator makes the receiver accept the new key too, then
// puts the new key first at the sender, then removes the old one from both.
//
// # What is not guaranteed
//
// A signature does not distinguish a repetition from the first delivery: webhooks are delivered at least once. A
// receiver recognizes repetitions by the id, and by the revision in the payload.
package signature
