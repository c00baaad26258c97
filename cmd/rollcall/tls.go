package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/platform/pki"
)

type tlsCmd struct {
	Init tlsInitCmd `cmd:"" help:"Make a development CA and certificates of nodes; a CA that is there is used."`
}

type tlsInitCmd struct {
	Dir          string   `default:"certs" placeholder:"FOLDER" help:"Where to put them."`
	Coordinators []string `name:"coordinator" default:"coordinator-1,coordinator-2,coordinator-3" placeholder:"ID" help:"Node ids of coordinators."`
	Gateways     []string `name:"gateway" default:"gateway" placeholder:"ID" help:"Ids of gateways."`
	Operators    []string `name:"operator" default:"operator" placeholder:"NAME" help:"Names of operators."`
	Hosts        []string `name:"host" placeholder:"HOST" help:"More names and addresses the coordinators' certificates are valid for. Rollcall itself goes by roles."`
	Days         int      `default:"365" min:"1" max:"3650" help:"How long certificates are valid."`
	Force        bool     `help:"Replace certificates that are there. A CA is never replaced."`
}

func (c *tlsInitCmd) Run(con *cli.Console) error {
	cfg := pki.Config{Dir: c.Dir, Days: c.Days, Force: c.Force}
	add := func(role pki.Role, hosts []string, names ...string) {
		for _, name := range names {
			cfg.Certificates = append(cfg.Certificates, pki.Certificate{Name: name, Role: role, Hosts: hosts})
		}
	}
	add(pki.RoleCoordinator, c.Hosts, c.Coordinators...)
	add(pki.RoleGateway, nil, c.Gateways...)
	add(pki.RoleOperator, nil, c.Operators...)
	written, err := pki.Issue(cfg)
	for _, file := range written {
		fmt.Fprintln(con.Stdout, file)
	}
	if errors.Is(err, fs.ErrExist) {
		return cli.WithFix(err, "Replace certificates that are there with --force; their CA stays.")
	}
	return err
}
