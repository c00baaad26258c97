package cli

import (
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
)

// TLSFlags are a party's certificate. Without any of them connections are plain text.
type TLSFlags struct {
	Cert string `env:"ROLLCALL_TLS_CERT" placeholder:"FILE" help:"Certificate, PEM."`
	Key  string `env:"ROLLCALL_TLS_KEY" placeholder:"FILE" help:"Its key, PEM."`
	CA   string `env:"ROLLCALL_TLS_CA" placeholder:"FILE" help:"Certificates of the CA that the other side's must lead to, PEM."`
}

// CheckFlags reports problems of the flags.
func (t *TLSFlags) CheckFlags(p *config.Problems) {
	given := map[bool]int{}
	for _, file := range []*string{&t.Cert, &t.Key, &t.CA} {
		given[*file != ""]++
	}
	switch {
	case given[true] == 0:
		return
	case given[false] == 0:
		if _, err := clusterport.LoadCertificate(t.Cert, t.Key); err != nil {
			p.Addf(&t.Cert, "", "%v", err)
		}
		CheckCAs(p, &t.CA)
		return
	}
	for _, file := range []*string{&t.Cert, &t.Key, &t.CA} {
		if *file == "" {
			p.Addf(file, "give certificate, key and CA, or none of them for plain text", "is missing")
		}
	}
}

// Load reads the files; nil when there are none.
func (t *TLSFlags) Load(cfg clusterport.TLSConfig) (*clusterport.TLS, error) {
	if t.Cert == "" {
		return nil, nil
	}
	cfg.CertFile, cfg.KeyFile, cfg.CAFile = t.Cert, t.Key, t.CA
	return clusterport.LoadTLS(cfg)
}

// RemoteFlags are how an operator's command reaches the cluster.
type RemoteFlags struct {
	Coordinators []string      `env:"ROLLCALL_COORDINATORS" placeholder:"HOST:PORT" help:"Cluster ports of coordinators; one that answers is enough. By default those of the cluster that \"rollcall-dev\" runs in build/dev, or else 127.0.0.1:7400."`
	Timeout      time.Duration `env:"ROLLCALL_TIMEOUT" default:"10s" min:"100ms" max:"10m" help:"How long to wait for an answer."`
	TLS          TLSFlags      `embed:"" prefix:"tls-"`
}

func (r *RemoteFlags) check(p *config.Problems) {
	r.TLS.CheckFlags(p)
	CheckAddresses(p, &r.Coordinators)
}

// Addresses are where to look for the cluster.
func (r *RemoteFlags) Addresses() []string {
	if len(r.Coordinators) > 0 {
		return r.Coordinators
	}
	if running := devinfo.Running(devinfo.DefaultData); running != nil {
		return running.ClusterPorts()
	}
	return []string{"127.0.0.1:7400"}
}

// admin returns the administration of the cluster, limited by the timeout. It connects with its first call.
func (r *RemoteFlags) admin() (*admin.Admin, error) {
	cfg := gateway.ClientConfig{Coordinators: r.Addresses(), CallTimeout: r.Timeout}
	material, err := r.TLS.Load(clusterport.TLSConfig{})
	if err != nil {
		return nil, err
	}
	if material != nil {
		cfg.TLS = material.ClientConfig(clusterport.ALPNgRPC)
	}
	return admin.Open(cfg)
}
