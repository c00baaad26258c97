package main

import (
	"os"
	"strconv"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
)

// cloudRunService has the parts of a service of Cloud Run that decide whether the monitor works there.
type cloudRunService struct {
	Kind string
	Spec struct {
		Template struct {
			Metadata struct{ Annotations map[string]string }
			Spec     struct {
				ServiceAccountName string `yaml:"serviceAccountName"`
				Containers         []struct {
					Args  []string
					Ports []struct {
						ContainerPort int `yaml:"containerPort"`
					}
					Env []struct {
						Name, Value string
						ValueFrom   struct {
							SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
						} `yaml:"valueFrom"`
					}
				}
			}
		}
	}
}

// The example for Cloud Run starts a monitor: each variable is a setting, and the settings are complete.
func TestEscrowSettings_CloudRunExample_StartsAnInstance(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/cloud-run.yaml")
	require.NoError(t, err)
	var service cloudRunService
	require.NoError(t, yaml.Unmarshal(text, &service))
	require.Equal(t, "Service", service.Kind)
	template := service.Spec.Template
	require.Equal(t, "false", template.Metadata.Annotations["run.googleapis.com/cpu-throttling"])
	instances, err := strconv.Atoi(template.Metadata.Annotations["autoscaling.knative.dev/minScale"])
	require.NoError(t, err)
	require.GreaterOrEqual(t, instances, 2, "one may die")
	require.NotEmpty(t, template.Spec.ServiceAccountName)
	require.Len(t, template.Spec.Containers, 1)
	container := template.Spec.Containers[0]
	require.Equal(t, []string{"escrow"}, container.Args)

	settings := map[string]bool{}
	for _, flag := range commandNode(t, []string{"escrow", "run"}).Flags {
		for _, name := range flag.Envs {
			settings[name] = true
		}
	}
	secrets := map[string]string{
		"RPC_URL":      "https://node-a.example/KEY,https://node-b.example/KEY",
		"DATABASE_URL": "postgres://escrow:PASSWORD@/escrow?host=/cloudsql/my-project:europe-west1:escrow",
	}
	env := map[string]string{}
	for _, e := range container.Env {
		require.True(t, settings[e.Name], "rollcall escrow has no setting %s", e.Name)
		require.NotEqual(t, "PORT", e.Name, "Cloud Run sets it, and refuses a service that does")
		require.NotContains(t, env, e.Name)
		env[e.Name] = e.Value
		if ref := e.ValueFrom.SecretKeyRef; ref.Name != "" {
			require.NotEmpty(t, ref.Key, e.Name)
			require.Contains(t, secrets, e.Name)
			env[e.Name] = secrets[e.Name]
			delete(secrets, e.Name)
		}
	}
	require.Empty(t, secrets, "they are given as secrets")
	env["PORT"] = strconv.Itoa(container.Ports[0].ContainerPort)
	parsed, err := parseCommand(t, env, container.Args...)
	require.NoError(t, err)
	c := parsed.Escrow.Run
	require.Equal(t, ":8080", c.listen)
	require.Equal(t, publish.TopicConfig{Project: "my-project", Topic: "settlement.events.v1", Endpoint: "europe-west1-pubsub.googleapis.com:443"}, c.topic)
	require.Equal(t, []common.Address{common.HexToAddress("0x1111111111111111111111111111111111111111")}, c.Chain.factories())
}
