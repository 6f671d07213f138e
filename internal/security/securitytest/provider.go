package securitytest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Provider is a provider of identities (OpenID Connect) with the device flow (RFC 8628), in this process.
type Provider struct {
	URL, ClientID string

	t   testing.TB
	key *rsa.PrivateKey

	mu       sync.Mutex
	claims   map[string]any // of who has agreed; nil: nobody yet
	denied   bool
	Devices  int // codes given out
	Answered int // polls answered
}

// NewProvider starts a provider. Nobody has agreed yet.
func NewProvider(t testing.TB) *Provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{ClientID: "hops", t: t, key: key}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, map[string]any{
			"issuer": p.URL, "jwks_uri": p.URL + "/keys", "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token",
			"device_authorization_endpoint": p.URL + "/device", "id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("POST /device", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		p.Devices++
		p.mu.Unlock()
		answer(w, 200, map[string]any{"device_code": "device", "user_code": "ABCD-EFGH", "verification_uri": p.URL + "/verify", "expires_in": 600, "interval": 1})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.Answered++
		switch {
		case r.FormValue("device_code") != "device" || r.FormValue("client_id") != p.ClientID:
			answer(w, 400, map[string]string{"error": "invalid_grant"})
		case p.denied:
			answer(w, 400, map[string]string{"error": "access_denied"})
		case p.claims == nil:
			answer(w, 400, map[string]string{"error": "authorization_pending"})
		default:
			answer(w, 200, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": p.sign(p.claims)})
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Agree lets who has a code in with claims.
func (p *Provider) Agree(claims map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = claims
}

// Deny refuses who has a code.
func (p *Provider) Deny() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied = true
}

// Sign makes an ID token, which lasts an hour, of claims beside or in place of the usual ones.
func (p *Provider) Sign(claims map[string]any) string {
	p.t.Helper()
	return p.sign(claims)
}

func (p *Provider) sign(claims map[string]any) string {
	all := map[string]any{"iss": p.URL, "aud": p.ClientID, "sub": "1", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		p.t.Error(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: p.key, KeyID: "1"}}, nil)
	if err != nil {
		p.t.Error(err)
		return ""
	}
	signed, err := signer.Sign(text)
	if err != nil {
		p.t.Error(err)
		return ""
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		p.t.Error(err)
	}
	return token
}
