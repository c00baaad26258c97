// Package jsonbody decodes the JSON body of a request strictly: a body is one object, a name is there once, and a value is read
// exactly. Errors name the field, the value and the remedy.
//
// The APIs of the relayer and of the relay path decode requests with it, so that both accept the same spellings of an amount, an
// address and data. It replaces encoding/json there, which matches names in any case and lets the last of two values win.
package jsonbody
