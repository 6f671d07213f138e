package security

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// received is a request as a server gets it.
func received(t *testing.T, r *http.Request) *http.Request {
	t.Helper()
	in := httptest.NewRequest(r.Method, r.URL.RequestURI(), nil)
	in.Host, in.RequestURI, in.Header = r.URL.Host, r.URL.RequestURI(), r.Header.Clone()
	return in
}

// A captured signature is good for nothing but the one request that it was made for.
func TestASignatureIsGoodForOneRequestOnly(t *testing.T) {
	key := NewRequestKey("token", ProxiedRequests)
	out, _ := http.NewRequest("POST", "http://127.0.0.1:4711/v1/a%2Fb?x=1", nil)
	out.Header.Set(UserHeader, "ann")
	var numbers Numbers
	key.Sign(out, Signature{Container: "container_1_0001_01_000001", Number: numbers.Next(), Body: BodySum([]byte("hello"))})
	if strings.Contains(out.Header.Get("Authorization"), "token") {
		t.Error("the token is shown")
	}
	good := received(t, out)
	s, ok := ParseSignature(good)
	if !ok || s.Container != "container_1_0001_01_000001" || !key.Signed(good, "127.0.0.1:4711", s) {
		t.Fatalf("%v %+v", ok, s)
	}
	for what, change := range map[string]func(*http.Request){
		"method": func(r *http.Request) { r.Method = "DELETE" },
		"path":   func(r *http.Request) { r.RequestURI = "/v1/a/b?x=1" },
		"query":  func(r *http.Request) { r.RequestURI = "/v1/a%2Fb?x=2" },
		"host":   func(r *http.Request) { r.Host = "127.0.0.1:4712" },
		"user":   func(r *http.Request) { r.Header.Set(UserHeader, "root") },
		"body": func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), BodySum([]byte("hello")), BodySum([]byte("evil")), 1))
		},
	} {
		r := received(t, out)
		change(r)
		if s, _ := ParseSignature(r); key.Signed(r, r.Host, s) || key.Signed(r, "127.0.0.1:4711", s) {
			t.Errorf("another %s passes", what)
		}
	}
	for what, other := range map[string]RequestKey{"purpose": NewRequestKey("token", ExecutorRequests), "token": NewRequestKey("other", ProxiedRequests), "none": nil} {
		if other.Signed(good, "127.0.0.1:4711", s) {
			t.Errorf("another key passes: %s", what)
		}
	}
	if key.Proof(1, 200, nil) == key.Proof(2, 200, nil) || key.Proof(1, 200, nil) == key.Proof(1, 201, nil) || key.Proof(1, 200, nil) == key.Proof(1, 200, []byte("x")) {
		t.Error("a proof fits another answer")
	}
}

func TestAnAdmissionLetsANumberInOnce(t *testing.T) {
	var a Admission
	now := time.Now()
	at := func(i int) int64 { return now.UnixNano() + int64(i) }
	for _, i := range []int{5, 3, 4, 9} { // requests overtake each other
		if err := a.Admit(at(i), now); err != nil {
			t.Error(i, err)
		}
	}
	for _, i := range []int{3, 4, 5, 9} {
		if err := a.Admit(at(i), now); !errors.Is(err, ErrRepeated) {
			t.Error(i, err)
		}
	}
	for i := 10; i < 10+3*maxNumbers; i++ {
		if err := a.Admit(at(i), now); err != nil {
			t.Fatal(i, err)
		}
	}
	if len(a.seen) > maxNumbers || cap(a.seen) > 4*maxNumbers {
		t.Errorf("%d numbers kept", len(a.seen))
	}
	if err := a.Admit(at(6), now); !errors.Is(err, ErrRepeated) {
		t.Error("older than all that is remembered:", err)
	}
	for _, off := range []time.Duration{MaxSkew + time.Minute, -MaxSkew - time.Minute} {
		if err := a.Admit(now.Add(off).UnixNano(), now); !errors.Is(err, ErrSkew) || !strings.Contains(err.Error(), "6m0s") {
			t.Error(err)
		}
	}
}

func TestNumbersRise(t *testing.T) {
	var n Numbers
	var a Admission
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if err := a.Admit(n.Next(), time.Now()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func FuzzSignature(f *testing.F) {
	r, _ := http.NewRequest("GET", "http://127.0.0.1:1/", nil)
	NewRequestKey("t", ExecutorRequests).Sign(r, Signature{Container: "c", Number: 1, Body: UnsignedBody})
	f.Add(r.Header.Get("Authorization"))
	f.Add(SignatureScheme + " container=a, container=b, number=1, body=-, signature=00")
	f.Fuzz(func(t *testing.T, header string) {
		in := &http.Request{Method: "GET", RequestURI: "/", Host: "h", Header: http.Header{"Authorization": {header}}}
		s, ok := ParseSignature(in)
		if !ok {
			return
		}
		key := NewRequestKey("unknown", ProxiedRequests)
		if key.Signed(in, "h", s) {
			t.Fatalf("%q is a signature by a key that nobody used", header)
		}
		s.mac = hmacOf(key, s.text(in, "/", "h")) // what was read can be signed, and is what is checked
		if !key.Signed(in, "h", s) {
			t.Fatal(s)
		}
	})
}
