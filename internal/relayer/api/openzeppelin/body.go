package openzeppelin

import (
	"errors"

	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// These are jsonbody's functions with the relayer's error.

func object(body []byte) ([]byte, error) {
	body, err := jsonbody.Object(body)
	return body, invalid(err)
}

func wellFormed(body []byte) ([]byte, error) {
	body, err := jsonbody.WellFormed(body)
	return body, invalid(err)
}

func elements(array []byte, fn func(value []byte) error) error {
	return invalid(jsonbody.Elements(array, fn))
}

func fields(object []byte, path string, fn func(name, value []byte) error) error {
	return invalid(jsonbody.Fields(object, path, fn))
}

func invalid(err error) error {
	if b, ok := errors.AsType[*jsonbody.Error](err); ok {
		return &relayer.InvalidError{Field: b.Field, Problem: b.Problem}
	}
	return err
}
