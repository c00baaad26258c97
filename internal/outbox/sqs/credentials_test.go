package sqs

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// without removes what the machine may have configured.
func without(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_ENDPOINT_URL_STS",
	} {
		t.Setenv(name, "")
		require.NoError(t, os.Unsetenv(name))
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// file returns the path of a file with a text.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestCredentials_EachPlace_IsRead(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/container" && r.Header.Get("Authorization") == "secret":
			_, _ = io.WriteString(w, `{"AccessKeyId": "of-the-container", "SecretAccessKey": "s", "Token": "t", "Expiration": "2100-01-01T00:00:00Z"}`)
		case r.Method == http.MethodPost && string(body) == "Action=AssumeRoleWithWebIdentity&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Frelay&RoleSessionName=relay&Version=2011-06-15&WebIdentityToken=token":
			w.Header().Set("Content-Type", "text/xml")
			_, _ = io.WriteString(w, `<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>of-the-role</AccessKeyId>
				<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>
				</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`)
		default:
			http.Error(w, "", http.StatusForbidden)
		}
	}))
	defer server.Close()
	for name, place := range map[string]map[string]string{
		"of-the-environment": {"AWS_ACCESS_KEY_ID": "of-the-environment", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"},
		"of-the-profile": {
			"AWS_SHARED_CREDENTIALS_FILE": file(t, "[relay]\naws_access_key_id=of-the-profile\naws_secret_access_key=s\naws_session_token=t\n"), "AWS_PROFILE": "relay",
		},
		"of-the-role": {
			"AWS_WEB_IDENTITY_TOKEN_FILE": file(t, "token"), "AWS_ROLE_ARN": "arn:aws:iam::1:role/relay", "AWS_ROLE_SESSION_NAME": "relay",
			"AWS_ENDPOINT_URL_STS": server.URL,
		},
		"of-the-container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL + "/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file(t, "secret")},
	} {
		t.Run(name, func(t *testing.T) {
			without(t)
			for key, value := range place {
				t.Setenv(key, value)
			}
			c, err := Credentials("eu-west-1").Retrieve(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{name, "s", "t"}, []string{c.AccessKeyID, c.SecretAccessKey, c.SessionToken})
		})
	}
}

// An operator must see which part of AWS refused, and what to set.
func TestCredentials_NoneOrRefused_HaveTheReason(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `<ErrorResponse><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>secret</Message></Error></ErrorResponse>`)
	}))
	defer server.Close()
	for name, test := range map[string]struct {
		place map[string]string
		want  string
	}{
		"none": {nil, "ReceiveMessage: " + ErrNoCredentials.Error()},
		"refused": {map[string]string{
			"AWS_WEB_IDENTITY_TOKEN_FILE": file(t, "token"), "AWS_ROLE_ARN": "arn:aws:iam::1:role/relay", "AWS_ENDPOINT_URL_STS": server.URL,
		}, "AssumeRoleWithWebIdentity: STS answered InvalidIdentityToken"},
	} {
		t.Run(name, func(t *testing.T) {
			without(t)
			for key, value := range test.place {
				t.Setenv(key, value)
			}
			tr := newTransport(location{region: "eu-west-1", endpoint: server.URL, queue: server.URL + "/1/queue"}, Credentials("eu-west-1"))
			defer tr.http.CloseIdleConnections()
			_, err := tr.Receive(t.Context(), 1)
			require.EqualError(t, err, test.want)
		})
	}
}
