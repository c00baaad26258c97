package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// OutputFlags choose between a table for people and JSON for scripts. The names of JSON fields stay as they are
// from release to release; new ones may come.
type OutputFlags struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"How to print."`
}

// Print writes v as JSON, or calls table.
func (o OutputFlags) Print(w io.Writer, v any, table func(w io.Writer)) error {
	if o.Output == "json" {
		return printJSON(w, v)
	}
	table(w)
	return nil
}

// printJSONLine is for streams: a value a line.
func printJSONLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// confirm prints a plan and asks the operator for a yes, unless yes is set. It fails if ctx ends first.
func confirm(ctx context.Context, con *Console, o OutputFlags, yes bool, plan func(io.Writer), question string) error {
	ask := con.Stdout
	if o.Output == "json" {
		ask = con.Stderr
	}
	if !yes || o.Output != "json" {
		plan(ask)
	}
	if yes {
		return nil
	}
	fmt.Fprint(ask, question+" Type yes: ")
	var answer string
	var err error
	read := make(chan struct{})
	go func() { // a read of a terminal cannot be interrupted
		defer close(read)
		answer, err = bufio.NewReader(con.Stdin).ReadString('\n')
	}()
	select {
	case <-read:
	case <-ctx.Done():
		fmt.Fprintln(ask)
		return errors.New("the question has no answer")
	}
	if strings.TrimSpace(answer) == "yes" {
		return nil
	}
	fmt.Fprintln(ask)
	if errors.Is(err, io.EOF) && answer == "" {
		return WithFix(errors.New("the standard input ended before an answer"), "Confirm beforehand, with --yes.")
	}
	return errors.New("it was not confirmed")
}

// table prints rows in aligned columns under a header.
func table(w io.Writer, header string, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(strings.Fields(header), "\t"))
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
			// A name from the directory cannot break the table, nor talk to the terminal.
			row[i] = strings.Map(printable, row[i])
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush()
}

// fields returns a function that prints a named value, unless it is empty. The values begin after a width.
func fields(w io.Writer, width int) func(name, value string) {
	return func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-*s %s\n", width, name, strings.Map(printable, value))
		}
	}
}

func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return '?'
	}
	return r
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
