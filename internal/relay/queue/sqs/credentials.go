package sqs

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
)

// ErrNoCredentials means that none of the places has credentials.
var ErrNoCredentials = errors.New("no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the container or instance a role")

const (
	// containerHost is where ECS serves credentials for AWS_CONTAINER_CREDENTIALS_RELATIVE_URI.
	containerHost = "http://169.254.170.2"
	// maxAnswer limits an answer of STS in bytes, and a token file.
	maxAnswer = 64 << 10
)

// Credentials returns the credentials of the environment, from the first of these places that is configured:
//
//   - AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
//   - AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN: a service account of EKS
//   - AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI, with AWS_CONTAINER_AUTHORIZATION_TOKEN or _TOKEN_FILE: ECS, and
//     Pod Identity of EKS
//   - the metadata service of an EC2 instance, unless AWS_EC2_METADATA_DISABLED is true
//
// They are the SDK's places for servers. Its shared configuration files, with profiles and single sign-on, are for
// persons; reading them would enlarge the binary by 2.3 MB.
func Credentials(region string) aws.CredentialsProvider {
	return aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return source(region).Retrieve(ctx)
	}), func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = 5 * time.Minute })
}

func source(region string) aws.CredentialsProvider {
	if id, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Source: "environment"}, nil
		})
	}
	if file, role := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"), os.Getenv("AWS_ROLE_ARN"); file != "" && role != "" {
		return webIdentity{region: region, file: file, role: role}
	}
	endpoint := os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if path := os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); endpoint == "" && path != "" {
		endpoint = containerHost + path
	}
	if endpoint != "" {
		return endpointcreds.New(endpoint, func(o *endpointcreds.Options) {
			o.AuthorizationToken = os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
			if file := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
				o.AuthorizationTokenProvider = endpointcreds.TokenProviderFunc(func() (string, error) { return readToken(file) })
			}
		})
	}
	if strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true") {
		return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, ErrNoCredentials })
	}
	instance := ec2rolecreds.New()
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		c, err := instance.Retrieve(ctx)
		if err != nil {
			return c, fmt.Errorf("%w: %w", ErrNoCredentials, err)
		}
		return c, nil
	})
}

func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAnswer))
	return strings.TrimSpace(string(text)), err
}

// webIdentity exchanges a token of Kubernetes for credentials of a role, at STS. The request needs no signature.
type webIdentity struct{ region, file, role string }

// Retrieve implements [aws.CredentialsProvider].
func (w webIdentity) Retrieve(ctx context.Context) (c aws.Credentials, err error) {
	token, err := readToken(w.file)
	if err != nil {
		return c, fmt.Errorf("read the web identity token: %w", err)
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {w.role}, "WebIdentityToken": {token},
		"RoleSessionName": {cmp.Or(os.Getenv("AWS_ROLE_SESSION_NAME"), "rollcall")},
	}
	endpoint := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_STS"), "https://sts."+w.region+".amazonaws.com/")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return c, fmt.Errorf("assume the role: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return c, fmt.Errorf("assume the role: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c, fmt.Errorf("assume the role: STS answered %s", resp.Status)
	}
	var answer struct {
		Credentials struct {
			AccessKeyID     string    `xml:"AccessKeyId"`
			SecretAccessKey string    `xml:"SecretAccessKey"`
			SessionToken    string    `xml:"SessionToken"`
			Expiration      time.Time `xml:"Expiration"`
		} `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	}
	if err := xml.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&answer); err != nil {
		return c, errors.New("assume the role: the answer of STS is malformed")
	}
	got := answer.Credentials
	if got.AccessKeyID == "" || got.SecretAccessKey == "" {
		return c, errors.New("assume the role: the answer of STS has no credentials")
	}
	return aws.Credentials{
		AccessKeyID: got.AccessKeyID, SecretAccessKey: got.SecretAccessKey, SessionToken: got.SessionToken,
		CanExpire: true, Expires: got.Expiration, Source: "web identity",
	}, nil
}
