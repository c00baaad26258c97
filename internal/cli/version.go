package cli

import (
	"fmt"
	"io"

	"github.com/rollcall-dev/rollcall/internal/process"
)

// VersionCmd prints the version.
type VersionCmd struct{ OutputFlags }

// Run prints the version.
func (c VersionCmd) Run(con *Console, p *Program) error {
	v := map[string]string{"version": process.Version()}
	return c.Print(con.Stdout, v, func(w io.Writer) { fmt.Fprintln(w, p.Name+" "+process.Version()) })
}
