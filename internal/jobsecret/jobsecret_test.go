package jobsecret

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
)

func TestASecretOpensInItsPlaceOnly(t *testing.T) {
	key, other := security.NewSecret(), security.NewSecret()
	for _, text := range []string{"", "hunter2", strings.Repeat("x", MaxBytes)} {
		sealed, err := Seal(key, "ann", "db", []byte(text))
		if err != nil || len(sealed) > MaxSealed || text != "" && bytes.Contains(sealed, []byte(text)) {
			t.Fatalf("%d bytes, %v", len(sealed), err)
		}
		if got, err := Open(key, "ann", "db", sealed); string(got) != text || err != nil {
			t.Errorf("%d bytes: %.20q, %v", len(text), got, err)
		}
		changed := bytes.Clone(sealed)
		changed[len(changed)-1] ^= 1
		for who, open := range map[string]func() ([]byte, error){
			"another user who has a copy":     func() ([]byte, error) { return Open(key, "eve", "db", sealed) },
			"under another name":              func() ([]byte, error) { return Open(key, "ann", "other", sealed) },
			"a user and name that read alike": func() ([]byte, error) { return Open(key, "an", "ndb", sealed) },
			"another cluster":                 func() ([]byte, error) { return Open(other, "ann", "db", sealed) },
			"one that was changed":            func() ([]byte, error) { return Open(key, "ann", "db", changed) },
			"one that was cut":                func() ([]byte, error) { return Open(key, "ann", "db", sealed[:len(sealed)-1]) },
			"one that is too long": func() ([]byte, error) {
				return Open(key, "ann", "db", append(bytes.Clone(sealed), make([]byte, MaxBytes+1)...))
			},
			"a file that somebody else put there": func() ([]byte, error) { return Open(key, "ann", "db", []byte("plain")) },
			"an empty file":                       func() ([]byte, error) { return Open(key, "ann", "db", nil) },
		} {
			if got, err := open(); !errors.Is(err, security.ErrSealed) || got != nil || text != "" && strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q, %v", who, got, err)
			}
		}
	}
	if _, err := Seal(key, "ann", "db", make([]byte, MaxBytes+1)); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "DB_PASSWORD": true, "tls.key": true, "": false, ".": false, "..": false, ".x": false, "-x": false, "a/b": false, "a b": false, "a\x00": false, "a\n": false,
		strings.Repeat("x", 128): true, strings.Repeat("x", 129): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckNames([]string{"a", "b", "a"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
	if err := CheckNames(make([]string, MaxPerJob+1)); err == nil {
		t.Error("too many are taken")
	}
	for user, want := range map[string]string{"ann": "/user/ann/.secrets", "": "", "..": "", "a/b": "", "a@b": "/user/a@b/.secrets"} {
		if got := Dir(user); got != want {
			t.Errorf("%q: %q", user, got)
		}
	}
}

func FuzzOpen(f *testing.F) {
	key := security.NewSecret()
	sealed, err := Seal(key, "ann", "db", []byte("hunter2"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := Open(key, "ann", "db", b); err == nil && !bytes.Equal(b, sealed) {
			t.Errorf("%x opens to %q", b, got)
		}
	})
}
