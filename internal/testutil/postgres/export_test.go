package postgres

// Sweep is sweep.
var Sweep = sweep

// SetBin sets the folder of PostgreSQL's programs.
func SetBin(dir string) { bin = dir }
