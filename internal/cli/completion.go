package cli

import (
	"os"
	"strings"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"
)

// CompletionCmd prints a shell's code for completion.
type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help returns the details of the help.
func (CompletionCmd) Help() string {
	return `For this shell only:       source <(PROGRAM completion bash)
For every new one:         the same line in ~/.bashrc or ~/.zshrc;
                           PROGRAM completion fish > ~/.config/fish/completions/PROGRAM.fish

PROGRAM is the name of this program.`
}

// completionCode is the code for each shell. The shells call the program itself with the line typed so far in the
// environment. bash and zsh receive a command line, not a path.
var completionCode = map[string]string{
	"bash": "complete -o default -o bashdefault -C COMMAND PROGRAM\n",
	"zsh": "(( $+functions[compdef] )) || { autoload -U compinit && compinit -i; }\nautoload -U +X bashcompinit && bashcompinit\n" +
		"complete -o default -o bashdefault -C COMMAND PROGRAM\n",
	"fish": "function __complete_FUNCTION\n    set -lx COMP_LINE (commandline -cp)\n    test -z (commandline -ct); and set COMP_LINE \"$COMP_LINE \"\n" +
		"    PATH\nend\ncomplete -f -c PROGRAM -a '(__complete_FUNCTION)'\n",
}

// Run prints the code.
func (c CompletionCmd) Run(con *Console, p *Program) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	once := quoted(binary)
	code := strings.NewReplacer("PATH", once, "COMMAND", quoted(once), "PROGRAM", p.Name, "FUNCTION", strings.ReplaceAll(p.Name, "-", "_"))
	_, err = code.WriteString(con.Stdout, completionCode[c.Shell])
	return err
}

// quoted returns a word for all three shells.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func completing() bool { return os.Getenv("COMP_LINE") != "" }

func completeLine(k *kong.Kong, words map[string][]string) int {
	code := 0
	options := []kongcompletion.Option{
		kongcompletion.WithPredictor("file", complete.PredictFiles("*")),
		kongcompletion.WithExitFunc(func(c int) { code = c }),
	}
	for name, set := range words {
		options = append(options, kongcompletion.WithPredictor(name, complete.PredictSet(set...)))
	}
	kongcompletion.Register(k, options...)
	return code
}
