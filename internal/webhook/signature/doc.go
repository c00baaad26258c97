// Package signature signs webhooks and verifies them, in two dialects that a request may carry side by side:
//
//   - OpenZeppelin Relayer's: X-Signature is the standard base64 of HMAC-SHA256 over the raw body. Older documents call
//     the header x-oz-signature; some senders write the digest in hex, or put "sha256=" before it. All of that is
//     understood. Only the body is signed, so the time in it is what tells an old one: its top-level "timestamp".
//   - Standard Webhooks': webhook-signature is a list, separated by spaces, of "v1," and the standard base64 of
//     HMAC-SHA256 over "id.timestamp.body", with the other two from webhook-id and webhook-timestamp (Unix seconds).
//
// # Keys
//
// A key is a string of at least 32 characters, and its bytes are the HMAC's key in both dialects. One that begins with
// "whsec_" is written as Standard Webhooks' libraries want it: for that dialect the key is what the base64 after the
// prefix stands for. A receiver with such a library and a key without the prefix gives the library "whsec_" and the
// base64 of the key.
//
// Keys are rotated by having two of them for a while. Standard Webhooks' header is signed with all; X-Signature can
// hold one signature only, that of the first key. So: make the receiver accept the new key too, put the new key first
// at the sender, take the old one away from both.
//
// # What is not guaranteed
//
// A signature does not tell a repetition from the first delivery: webhooks are delivered at least once. A receiver
// recognizes them by the id, and by the revision of what they tell.
package signature
