package postgres

// Sweep is sweep.
var Sweep = sweep

// SetBin says where PostgreSQL's programs are.
func SetBin(dir string) { bin = dir }
