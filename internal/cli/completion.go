package main

import (
	"os"
	"strings"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `For this shell only:       source <(rollcall completion bash)
For every new one:         the same line in ~/.bashrc or ~/.zshrc;
                           rollcall completion fish > ~/.config/fish/completions/rollcall.fish`
}

// The shells call the program itself with the line typed so far in the environment. bash and zsh receive a
// command line, not a path.
var completionCode = map[string]string{
	"bash": "complete -o default -o bashdefault -C COMMAND rollcall\n",
	"zsh": "(( $+functions[compdef] )) || { autoload -U compinit && compinit -i; }\nautoload -U +X bashcompinit && bashcompinit\n" +
		"complete -o default -o bashdefault -C COMMAND rollcall\n",
	"fish": "function __complete_rollcall\n    set -lx COMP_LINE (commandline -cp)\n    test -z (commandline -ct); and set COMP_LINE \"$COMP_LINE \"\n" +
		"    PATH\nend\ncomplete -f -c rollcall -a '(__complete_rollcall)'\n",
}

func (c completionCmd) Run(con *console) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	once := quoted(binary)
	_, err = strings.NewReplacer("PATH", once, "COMMAND", quoted(once)).WriteString(con.stdout, completionCode[c.Shell])
	return err
}

// quoted is a word to all three shells.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func completing() bool { return os.Getenv("COMP_LINE") != "" }

func completeLine(k *kong.Kong) int {
	code := 0
	kongcompletion.Register(k,
		kongcompletion.WithPredictor("file", complete.PredictFiles("*")),
		kongcompletion.WithPredictor("devmember", complete.PredictSet("leader", "coordinator-1", "coordinator-2", "coordinator-3",
			"oz-relayer-0", "oz-relayer-1", "oz-relayer-2", "gateway", "chain", "postgres")),
		kongcompletion.WithPredictor("devrelayer", complete.PredictSet("oz-relayer-0", "oz-relayer-1", "oz-relayer-2")),
		kongcompletion.WithExitFunc(func(c int) { code = c }))
	return code
}
