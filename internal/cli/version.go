package cli

import (
	"fmt"
	"io"
	"runtime/debug"
)

// VersionCmd prints the version.
type VersionCmd struct{ OutputFlags }

// Run prints the version.
func (c VersionCmd) Run(con *Console, p *Program) error {
	v := map[string]string{"version": Version()}
	return c.Print(con.Stdout, v, func(w io.Writer) { fmt.Fprintln(w, p.Name+" "+Version()) })
}

// Version returns the version of the module, or the commit that the program was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	v := info.Main.Version
	if revision := settings["vcs.revision"]; v == "(devel)" && len(revision) >= 12 {
		v = "devel-" + revision[:12]
		if settings["vcs.modified"] == "true" {
			v += "-dirty"
		}
	}
	return v + " " + info.GoVersion
}
