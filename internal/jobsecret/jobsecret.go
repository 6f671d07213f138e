// Package jobsecret seals the secrets that users keep for their jobs: passwords and keys that containers read as files.
//
// A sealed secret is a file of the user's in the cluster's file system, /user/NAME/.secrets/SECRET. Its content is
// encrypted and authenticated with a key that is made from the cluster's secret, and bound to the user and to the name: neither
// who may read the file system, nor who has the disks of datanodes, nor another user who is given a copy can read it,
// and a file that was renamed or changed does not open. The resource managers seal and open.
package jobsecret

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

// The limits.
const (
	MaxBytes   = 64 << 10 // of one secret
	MaxPerUser = 64
	MaxPerJob  = 64
	// MaxSealed is the size of a sealed secret, in bytes, at most.
	MaxSealed = MaxBytes + overhead
	overhead  = len(magic) + security.SealOverhead
)

// magic begins a sealed secret and names its format: it, and security.Secret.Seal of the content.
const magic = "HOPSSEC1"

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// CheckName says why a name is none of a secret: it becomes the name of a file. The error is of kind metadata.ErrInvalidArgument.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%.140q is no name of a secret: up to 128 letters, digits, '.', '_' and '-', the first a letter, a digit or '_'", name)
	}
	return nil
}

// CheckNames checks the secrets of a job.
func CheckNames(names []string) error {
	if len(names) > MaxPerJob {
		return metadata.Errorf(metadata.ErrInvalidArgument, "%d secrets, a job has at most %d", len(names), MaxPerJob)
	}
	for i, name := range names {
		if err := CheckName(name); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return metadata.Errorf(metadata.ErrInvalidArgument, "%q is there twice", name)
		}
	}
	return nil
}

// Dir is the directory of the file system with a user's secrets; empty: no user has that name.
func Dir(user string) string {
	if user == "" || user == "." || user == ".." || strings.ContainsAny(user, "/\x00") {
		return ""
	}
	return path.Join("/user", user, ".secrets")
}

// purpose of the key that is made from the cluster's secret.
const purpose = "secrets of jobs"

// owner is what a sealed secret is bound to.
func owner(user, name string) string { return magic + user + "\x00" + name }

// Seal encrypts a secret for its place.
func Seal(k security.Secret, user, name string, secret []byte) ([]byte, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if len(secret) > MaxBytes {
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "secret %s has more than %d bytes: put large content into the file system", name, MaxBytes)
	}
	return append([]byte(magic), k.Seal(purpose, owner(user, name), secret)...), nil
}

// Open decrypts what Seal made for the same place. security.ErrSealed: it did not.
func Open(k security.Secret, user, name string, sealed []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(sealed, []byte(magic))
	secret, err := k.Open(purpose, owner(user, name), rest)
	if !ok || err != nil || len(sealed) > MaxSealed {
		return nil, fmt.Errorf("secret %s: %w: put it again", name, security.ErrSealed)
	}
	return secret, nil
}
