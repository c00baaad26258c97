package sqs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go"
)

// ErrNoCredentials means that none of the places has credentials.
var ErrNoCredentials = errors.New("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the container or instance a role")

// metadataService is the id of the last place, the metadata service of an EC2 instance.
const metadataService = "ec2imds"

// Credentials returns the credentials from the places that each AWS SDK reads, in the same order: keys of the environment, a web
// identity of the environment such as a service account of EKS, the shared files with a profile, the container's endpoint of ECS or EKS, and the instance's metadata.
func Credentials(region string) aws.CredentialsProvider {
	return aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		loaded, err := config.LoadDefaultConfig(ctx, config.WithRegion(region))
		if err != nil {
			return aws.Credentials{}, fmt.Errorf("load the AWS configuration: %w", err)
		}
		c, err := loaded.Credentials.Retrieve(ctx)
		if failed, ok := errors.AsType[*smithy.OperationError](err); ok && failed.Service() == metadataService {
			err = fmt.Errorf("%w: %w", ErrNoCredentials, err)
		}
		return c, err
	}), func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = 5 * time.Minute })
}
