package authority

import (
	"bytes"
	"crypto/x509"
	"net/url"
	"strings"
	"testing"
)

func FuzzToken(f *testing.F) {
	token, _ := NewInvitation(Fingerprint{1, 2, 3}, nil, start, 1)
	f.Add(token.String())
	f.Add("hops1..")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := ParseToken(text); err == nil && got.String() != strings.TrimSpace(text) {
			t.Errorf("%q is %q", text, got)
		}
	})
}

func FuzzName(f *testing.F) {
	f.Add("hops://CID-1/machine/m1/1", "hops://CID-1/role/datanode")
	f.Add("hops://CID-1/user/a%2Fb", "")
	f.Fuzz(func(t *testing.T, one, two string) {
		var uris []*url.URL
		for _, text := range []string{one, two} {
			if u, err := url.Parse(text); err == nil && text != "" {
				uris = append(uris, u)
			}
		}
		n, err := parseName(uris)
		if err != nil {
			return
		}
		again, err := parseName(n.uris())
		if err != nil || n.String() != again.String() || n.Cluster != again.Cluster || n.Generation != again.Generation {
			t.Errorf("%v is %v %v", n, again, err)
		}
	})
}

func FuzzPEM(f *testing.F) {
	a := newAuthority(f, cluster)
	text, err := a.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := Parse(text); err == nil {
			if _, err := ParseRoots(MarshalRoots([]*x509.Certificate{got.Root()})); err != nil {
				t.Error(err)
			}
		}
		ParseRoots(text)
	})
}

func FuzzRequest(f *testing.F) {
	request, err := Request(newKey(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request)
	f.Fuzz(func(_ *testing.T, der []byte) { checkRequest(der) })
}

func FuzzVerdict(f *testing.F) {
	f.Add([]byte("\x02\x01\x00\x02no"))
	f.Add([]byte("2/1"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		readVerdict(bytes.NewReader(b))
		programOf([]string{"h2", programProtocol + string(b)})
	})
}
