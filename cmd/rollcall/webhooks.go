package main

import (
	"time"

	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// webhookConfig returns the configuration of webhooks to targets, which it does not check. retention is how long delivered webhooks are
// kept; 0 for none.
func webhookConfig(targets []webhook.Target, allowPrivate bool, retention time.Duration) webhook.Config {
	cfg := webhook.Config{AllowPrivate: allowPrivate, Targets: targets, Retention: retention}
	if cfg.Retention == 0 {
		cfg.Retention = webhook.KeepNone
	}
	return cfg
}

// parseWebhooks is webhookConfig for targets as JSON, which it checks; "" for none. Its error contains no secret.
func parseWebhooks(targets string, allowPrivate bool, retention time.Duration) (webhook.Config, error) {
	if targets == "" {
		return webhookConfig(nil, allowPrivate, retention), nil
	}
	list, err := webhook.ParseTargets(targets)
	cfg := webhookConfig(list, allowPrivate, retention)
	if err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}
