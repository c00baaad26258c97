package postgres

// SetBin sets the folder of PostgreSQL's programs.
func SetBin(dir string) { bin = dir }
