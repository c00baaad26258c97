package raftstore

// SetReplaceStep sets the function that Replace calls after each step.
func SetReplaceStep(f func(string)) { replaceStep = f }
