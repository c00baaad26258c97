package postgres

// SetBin sets the folder of PostgreSQL's programs.
func SetBin(dir string) { bin = dir }

// RunFolder is the name of an environment variable.
const RunFolder = runFolder
