// Package config reads a command's settings from flags, the environment and a file, and reports all problems with them
// together.
//
// A command is a struct with kong's tags. This package adds:
//
//   - precedence: a flag beats the environment, which beats the file, which beats the default. An empty
//     environment variable, or a key without a value in the file, counts as not set.
//   - the file: a YAML mapping from flag names to values, named by the flag "config" of commands that have
//     one. Keys that are no flag of the command are errors.
//   - the tags `min`, `max` (inclusive bounds of a number or duration) and `secret` (the value never appears in
//     an error).
//   - [Checker], for settings that depend on each other.
//
// Every command of the binary calls it. It calls kong and the YAML library.
package config
