package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// ParseTargets parses configured targets: a JSON array of objects with a name, a url, and signingKeys, the newest key
// first. It does not check them, see [Config.Validate]. Its error joins all parse errors, and contains none of the
// text.
func ParseTargets(text string) ([]Target, error) {
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) == 0 {
		return nil, errors.New(`it takes a JSON array: [{"name": "…", "url": "https://…", "signingKeys": ["…"]}, …]`)
	}
	targets := make([]Target, len(list))
	var errs []error
	for i, raw := range list {
		var t struct {
			Name        string   `json:"name"`
			URL         string   `json:"url"`
			SigningKeys []string `json:"signingKeys"`
		}
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&t); err != nil { // the error may quote a secret
			errs = append(errs, fmt.Errorf("webhook target %d: it takes an object of name, url and signingKeys, an array", i+1))
		}
		targets[i] = Target{Name: t.Name, URL: t.URL, SigningKeys: t.SigningKeys}
	}
	return targets, errors.Join(errs...)
}
