package openzeppelin

import (
	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// DecodePatch reads a JSON merge patch (RFC 7396) of a relayer: null resets a setting to its default, and a missing setting
// is kept. A setting that this relayer does not have is rejected.
func DecodePatch(body []byte) (relayer.Patch, error) {
	var p relayer.Patch
	body, err := object(body)
	if err != nil {
		return p, err
	}
	err = fields(body, "", func(name, value []byte) (err error) {
		switch string(name) {
		case "name":
			if jsonbody.IsNull(value) {
				return nil // null is the default, the only possible name
			}
			p.Name = new(string)
			if *p.Name, err = jsonbody.Text("name", value); err == nil {
				err = CheckMetadata("name", *p.Name)
			}
			return err
		case "paused":
			if string(value) != "true" && string(value) != "false" {
				return relayer.Invalidf("paused", "must be true or false")
			}
			p.Paused = new(string(value) == "true")
			return nil
		case "policies":
			if jsonbody.IsNull(value) {
				p.MinBalance.Set = true
				return nil
			}
			if value[0] != '{' {
				return relayer.Invalidf("policies", "must be an object")
			}
			return fields(value, "policies", func(name, value []byte) error {
				if string(name) != "min_balance" {
					return relayer.Invalidf(jsonbody.Join("policies", jsonbody.Clip(name)), "can't be changed here: it is part of the relayer's configuration")
				}
				p.MinBalance.Set = true
				if jsonbody.IsNull(value) {
					return nil
				}
				p.MinBalance.Value, err = jsonbody.Amount("policies.min_balance", value)
				return err
			})
		case "notification_id", "custom_rpc_urls":
			return relayer.Invalidf(string(name), "can't be changed here: it is part of the relayer's configuration")
		default:
			return relayer.Invalidf(jsonbody.Clip(name), "is unknown: paused and policies.min_balance can be changed")
		}
	})
	if err != nil {
		return relayer.Patch{}, err
	}
	return p, nil
}
