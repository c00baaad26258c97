package main

import (
	"fmt"
	"io"
	"runtime/debug"
)

type versionCmd struct{ outputFlags }

func (c versionCmd) Run(con *console) error {
	v := map[string]string{"version": version()}
	return c.print(con.stdout, v, func(w io.Writer) { fmt.Fprintln(w, "rollcall "+version()) })
}

// version is that of the module or of the commit it was built from.
func version() string {
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
