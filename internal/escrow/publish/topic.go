package publish

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// requestTimeout is the limit of one request.
const requestTimeout = 10 * time.Second

// TopicConfig names a topic of Google Pub/Sub.
type TopicConfig struct {
	// Project and Topic are the ids of the project and the topic. Required.
	Project, Topic string
	// Emulator is the host and port of an emulator: plain gRPC without credentials. Default: Google's service, with the credentials of the
	// environment.
	Emulator string
	// Endpoint is the host and port of the service, such as a regional one: Pub/Sub keeps the order of a key within a region. Default: the
	// global one.
	Endpoint string
}

// Ids as Google's documentation of resource names describes them.
var (
	validProject = regexp.MustCompile(`^[a-z][a-z0-9.:-]{4,61}[a-z0-9]$`)
	validTopic   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`)
)

// Validate returns all problems, joined.
func (c TopicConfig) Validate() error {
	var errs []error
	if !validProject.MatchString(c.Project) {
		errs = append(errs, fmt.Errorf("project id %q: use 6 to 63 lower-case letters, digits, dots, colons and hyphens, a letter first", c.Project))
	}
	if !validTopic.MatchString(c.Topic) {
		errs = append(errs, fmt.Errorf("topic id %q: use 3 to 255 letters, digits and . _ ~ + %% -, a letter first", c.Topic))
	}
	if c.Emulator != "" && c.Endpoint != "" {
		errs = append(errs, errors.New("an emulator and an endpoint are given: give one"))
	}
	return errors.Join(errs...)
}

// Topic is a topic of Google Pub/Sub. It is safe for concurrent use.
type Topic struct {
	client   *pubsub.TopicAdminClient
	name     string
	emulated bool
}

// OpenTopic returns a Topic. It fails if the Config is invalid or the environment has no credentials; it does not connect. The caller
// closes it.
func OpenTopic(ctx context.Context, cfg TopicConfig) (*Topic, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("pub/sub: %w", err)
	}
	options := []option.ClientOption{option.WithTelemetryDisabled()}
	switch {
	case cfg.Emulator != "":
		conn, err := grpc.NewClient(cfg.Emulator, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, fmt.Errorf("pub/sub emulator %s: %w", cfg.Emulator, err)
		}
		options = append(options, option.WithGRPCConn(conn))
	case cfg.Endpoint != "":
		options = append(options, option.WithEndpoint(cfg.Endpoint))
	}
	client, err := pubsub.NewTopicAdminClient(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("pub/sub: %w", err)
	}
	client.CallOptions.Publish = nil // the outbox repeats, and lets another process do it
	return &Topic{client: client, name: fmt.Sprintf("projects/%s/topics/%s", cfg.Project, cfg.Topic), emulated: cfg.Emulator != ""}, nil
}

// Close closes the connection.
func (t *Topic) Close() error { return t.client.Close() }

// Create creates the topic, for an emulator. It returns nil if the topic exists.
func (t *Topic) Create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := t.client.CreateTopic(ctx, &pubsubpb.Topic{Name: t.name})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("create %s: %w", t.name, err)
	}
	return nil
}

// publish sends one message. The error is that of gRPC. An emulator that was started again has lost its topics, so the topic is created
// again; Google's service loses none.
func (t *Topic) publish(ctx context.Context, m *pubsubpb.PubsubMessage) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := t.client.Publish(ctx, &pubsubpb.PublishRequest{Topic: t.name, Messages: []*pubsubpb.PubsubMessage{m}})
	if t.emulated && status.Code(err) == codes.NotFound {
		if created := t.Create(ctx); created != nil {
			return errors.Join(err, created)
		}
		_, err = t.client.Publish(ctx, &pubsubpb.PublishRequest{Topic: t.name, Messages: []*pubsubpb.PubsubMessage{m}})
	}
	return err
}

// class is what an answer of the topic means for a message.
type class int

const (
	accepted class = iota
	away           // the process cannot publish: nothing is known about the message
	failed         // the topic is away, or fails on this message
	again          // the message may be accepted later
	refused        // the topic never accepts the message
)

func classify(err error) class {
	switch status.Code(err) {
	case codes.OK:
		return accepted
	case codes.InvalidArgument, codes.OutOfRange:
		return refused
	case codes.FailedPrecondition, codes.Aborted:
		return again
	case codes.Unavailable, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated: // they are about the topic
		return away
	default:
		return failed
	}
}
