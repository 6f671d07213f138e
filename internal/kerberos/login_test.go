package kerberos

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const conf = "[libdefaults]\n  default_realm = HOPS.TEST\n  dns_lookup_kdc = false\n[realms]\n  HOPS.TEST = {\n    kdc = 127.0.0.1:1\n  }\n"

// What a user is told who cannot log in. The cache is one that kinit wrote in 2026; its tickets have ended.
func TestLoginsThatFail(t *testing.T) {
	cache, err := os.ReadFile("testdata/alice.cache")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, 18)
	for _, c := range []struct {
		name, conf, cache string
		content           []byte
		want              string
	}{
		{"no krb5.conf", "", "", nil, "krb5.conf: no such file or directory"},
		{"no cache", conf, "FILE:none", nil, "none: kinit first"},
		{"a cache that is no file", conf, "KCM:0", nil, "KRB5CCNAME is KCM:0: only files are read"},
		{"half a cache", conf, "", cache[:len(cache)/2], "it is no ticket cache of version 3 or 4, or ends in the middle: kinit again"},
		{"an empty cache", conf, "", []byte{}, "it is no ticket cache"},
		{"garbage", conf, "", []byte("garbage"), "it is no ticket cache"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("KRB5_CONFIG", filepath.Join(dir, "krb5.conf"))
			if c.conf != "" {
				if err := os.WriteFile(filepath.Join(dir, "krb5.conf"), []byte(c.conf), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			name := c.cache
			if c.content != nil {
				name = filepath.Join(dir, "cache")
				if err := os.WriteFile(name, c.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("KRB5CCNAME", name)
			if _, err := LoginFromCache(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(path, cache, 0o600); err != nil {
		t.Fatal(err)
	}
	read, _, err := readCache(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := current(read, time.Date(2026, 11, 22, 14, 30, 0, 0, time.UTC)); err != nil {
		t.Errorf("while its tickets are good: %v", err)
	}
	if err := current(read, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil || !strings.Contains(err.Error(), "expired at 2026-11-23") {
		t.Errorf("later: %v", err)
	}
	krb5 := filepath.Join(t.TempDir(), "krb5.conf")
	if err := os.WriteFile(krb5, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KRB5_CONFIG", krb5)
	if _, err := LoginFromKeytab(w.path, principal(t, "alice@HOPS.TEST")); err == nil || !strings.Contains(err.Error(), "has no key of alice@HOPS.TEST: it has nn/a.example.com@EXAMPLE.COM") {
		t.Errorf("another's keytab: %v", err)
	}
}

// Tickets are taken from a cache that was written anew while others look at who has logged in: what the race detector has to say of it.
func TestACacheThatIsReadAgain(t *testing.T) {
	cache, err := os.ReadFile("testdata/alice.cache")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	krb5, path := filepath.Join(dir, "krb5.conf"), filepath.Join(dir, "cache")
	t.Setenv("KRB5_CONFIG", krb5)
	t.Setenv("KRB5CCNAME", path)
	if err := errors.Join(os.WriteFile(krb5, []byte(conf), 0o600), os.WriteFile(path, cache, 0o600)); err != nil {
		t.Fatal(err)
	}
	ended, _, err := readCache(path)
	if err != nil {
		t.Fatal(err)
	}
	end := func(at time.Time) []byte { return binary.BigEndian.AppendUint32(nil, uint32(at.Unix())) }
	for _, c := range ended.GetEntries() {
		cache = bytes.ReplaceAll(cache, end(c.EndTime), end(time.Now().Add(time.Hour)))
	}
	if err := os.WriteFile(path, cache, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := LoginFromCache()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var looking sync.WaitGroup
	stop := make(chan struct{})
	looking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if who := l.Principal().String(); who != "alice@HOPS.TEST" {
					t.Error(who)
				}
				runtime.Gosched()
			}
		}
	})
	for range 5 {
		before := l.client
		if err := os.Chtimes(path, time.Time{}, l.read.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		err := l.refresh()
		l.mu.Unlock()
		if err != nil || l.client == before {
			t.Errorf("it was not read again, %v", err)
		}
	}
	close(stop)
	looking.Wait()
}
