package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Checker is a command whose settings depend on each other. Check is called when every setting is valid, or has its
// default value and a problem already reported.
type Checker interface{ Check(*Problems) }

// Options are the parameters of a command line besides its grammar.
type Options struct {
	// Name is the program's name in help and errors.
	Name        string
	Description string
	// LookupEnv reads the environment. Default: os.LookupEnv.
	LookupEnv      func(string) (string, bool)
	Stdout, Stderr io.Writer
	// Kong are further options for the parser.
	Kong []kong.Option
}

// New returns the parser for a grammar, a pointer to a struct with kong's tags. It fails only for mistakes in the
// grammar.
func New(grammar any, o Options) (*Parser, error) {
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	p := &Parser{lookupEnv: o.LookupEnv}
	options := append([]kong.Option{
		kong.Name(o.Name),
		kong.Description(o.Description),
		kong.Writers(o.Stdout, o.Stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.ValueFormatter(describe),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.Resolvers(kong.ResolverFunc(p.resolve)),
	}, o.Kong...)
	k, err := kong.New(grammar, options...)
	if err != nil {
		return nil, fmt.Errorf("command line grammar: %w", err)
	}
	p.Kong = k
	return p, kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		flag, ok := node.(*kong.Flag)
		if !ok || flag == k.Model.HelpFlag {
			return next(nil)
		}
		// From here on resolve reads the environment instead of kong, which would prefer the file to it. flag.Envs
		// keeps the names.
		flag.Tag.Envs = nil
		flag.Mapper = &reportingMapper{Mapper: flag.Mapper, parser: p}
		return next(nil)
	})
}

// Parser parses a command line. It is for one Parse.
type Parser struct {
	Kong *kong.Kong

	lookupEnv func(string) (string, bool)
	problems  *Problems
	file      *file
}

// exit is the panic value by which kong's help returns to Parse, because kong can only end the process.
type exit int

// ErrHelp means that help was requested and printed.
var ErrHelp = errors.New("help was printed")

// Parse fills in the grammar. It fails with *Error for any problem with the command line or the settings, and with
// ErrHelp if it printed help instead.
func (p *Parser) Parse(args []string) (kctx *kong.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(exit); !ok {
				panic(r)
			}
			kctx, err = nil, ErrHelp
		}
	}()
	p.problems = &Problems{sources: map[*kong.Flag]source{}, faulty: map[*kong.Flag]bool{}, lookupEnv: p.lookupEnv}
	kctx, err = p.Kong.Parse(args)
	if parseErr, ok := errors.AsType[*kong.ParseError](err); ok {
		kctx = parseErr.Context
		if kctx.Error != nil {
			p.badCommandLine(kctx, args)
			// The rest is parsed nevertheless, to report its problems.
			err = errors.Join(kctx.Reset(), kctx.Resolve())
		}
	}
	if err != nil {
		p.problems.add(Problem{Where: "command line", What: strings.TrimPrefix(err.Error(), "command line: ")})
	}
	p.problems.context = kctx
	if kctx.Error == nil && err == nil {
		for _, step := range kctx.Path {
			if node := step.Node(); node != nil {
				if c, ok := reflect.TypeAssert[Checker](node.Target.Addr()); ok {
					c.Check(p.problems)
				}
			}
		}
	}
	if len(p.problems.list) > 0 {
		return nil, &Error{Command: commandName(kctx), Problems: p.problems.list}
	}
	return kctx, nil
}

// badCommandLine reports why kong could not parse the arguments. kong stops at the first unknown flag, so this reports
// all of them.
func (p *Parser) badCommandLine(kctx *kong.Context, args []string) {
	var known []string
	for _, flag := range kctx.Flags() {
		known = append(known, "--"+flag.Name)
		for _, alias := range flag.Aliases {
			known = append(known, "--"+alias)
		}
	}
	known = append(known, "--help")
	reported := false
	for _, arg := range args {
		if arg == "--" {
			break
		}
		name, _, _ := strings.Cut(arg, "=")
		if !strings.HasPrefix(name, "--") || slices.Contains(known, name) {
			continue
		}
		p.problems.add(Problem{Where: name, What: "is not a flag of " + commandName(kctx), Fix: didYouMean(name, known)})
		reported = true
	}
	if reported {
		return
	}
	problem := Problem{Where: "command line", What: kctx.Error.Error()}
	if word, ok := strings.CutPrefix(problem.What, "unexpected argument "); ok { // kong has no type for it
		word, _, _ = strings.Cut(word, ", did you mean ")
		problem.What, problem.Fix = unexpected(kctx, args, word)
	}
	p.problems.add(problem)
}

// unexpected describes a word that the command does not accept, and lists the valid commands.
func unexpected(kctx *kong.Context, args []string, word string) (what, fix string) {
	node := kctx.Selected()
	if node == nil {
		node = kctx.Model.Node
	}
	if node.Parent != nil && node.Parent.DefaultCmd == node && !slices.Contains(args, node.Name) {
		node = node.Parent // the default command was not named: the word is in the place of a command
	}
	var names []string
	for _, child := range node.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			names = append(names, child.Name)
		}
	}
	if len(names) == 0 {
		return fmt.Sprintf("%q is more than %s takes", word, node.FullPath()), ""
	}
	fix = "it has "
	if guess := didYouMean(word, names); guess != "" {
		fix = guess + " It has "
	}
	fix += strings.Join(names, ", ")
	for _, child := range kctx.Model.Children {
		if child.Name == word && !child.Hidden {
			fix += fmt.Sprintf("; there is %q", child.FullPath())
		}
	}
	return fmt.Sprintf("%q is not a command of %s", word, node.FullPath()), fix
}

// resolve returns the value of a flag that is not on the command line, from the environment or else the file.
func (p *Parser) resolve(kctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if p.file == nil {
		p.file = p.openFile(kctx)
	}
	for _, name := range flag.Envs {
		if value, ok := p.lookupEnv(name); ok && value != "" {
			p.problems.sources[flag] = source{kind: fromEnv, name: name}
			return value, nil
		}
	}
	if value, ok := p.file.values[flag.Name]; ok {
		p.problems.sources[flag] = source{kind: fromFile, name: value.where}
		return value.text, nil
	}
	return nil, nil
}

func (p *Parser) openFile(kctx *kong.Context) *file {
	flags := kctx.Flags()
	i := slices.IndexFunc(flags, func(f *kong.Flag) bool { return f.Name == configFlag })
	if i < 0 {
		return &file{}
	}
	flag := flags[i]
	path := ""
	for _, step := range kctx.Path {
		if step.Flag == flag {
			path, _ = kctx.FlagValue(flag).(string)
		}
	}
	for _, name := range flag.Envs {
		if value, _ := p.lookupEnv(name); path == "" {
			path = value
		}
	}
	if path == "" {
		return &file{}
	}
	f, problems := readFile(path, flags)
	p.problems.add(problems...)
	return f
}

// reportingMapper reports a value that cannot be read, or is out of bounds, and goes on with the default.
type reportingMapper struct {
	kong.Mapper
	parser *Parser
}

func (m *reportingMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	token := ctx.Scan.Peek()
	if !token.IsValue() && target.Kind() != reflect.Bool {
		return errors.New("needs a value")
	}
	err := m.Mapper.Decode(ctx, target)
	if err == nil {
		err = checkValue(ctx.Value, target)
	} else {
		err = fmt.Errorf("is not %s", kindOf(ctx.Value, target, err))
	}
	if err == nil {
		return nil
	}
	flag := ctx.Value.Flag
	value := fmt.Sprintf("%q ", token.String())
	if flag.Tag.Has(secretTag) {
		value = "the value "
	}
	m.parser.problems.addAt(flag, value+err.Error(), fixFor(ctx.Value, target))
	target.SetZero()
	if !flag.HasDefault {
		return nil
	}
	scan := kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: flag.Default})
	return m.Mapper.Decode(&kong.DecodeContext{Value: ctx.Value, Scan: scan}, target)
}

func commandName(kctx *kong.Context) string {
	if node := kctx.Selected(); node != nil {
		return node.FullPath()
	}
	return kctx.Model.Name
}
