package supervisor

import (
	"fmt"
	"path/filepath"
)

// writeDefinitions writes the relayers' definition files for the gateway, one for each.
func (s *supervisor) writeDefinitions() error {
	for i, port := range s.ports.Relayer {
		id := relayerID(i)
		content := fmt.Sprintf("id: %s\nkind: relayer\nworker_ref:\n  url: http://%s\n", id, local(port))
		if err := replace(filepath.Join(s.cfg.Data, "services", id+".yaml"), []byte(content)); err != nil {
			return err
		}
	}
	return nil
}
