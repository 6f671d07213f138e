package usertoken

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// PublicKey is what a server checks tokens with.
type PublicKey struct {
	ID  string            `json:"id"`
	Key ed25519.PublicKey `json:"key"` // base64 in JSON
}

// Trusted is what a server needs to know to check the tokens of a cluster. Its JSON is the document that servers are told of.
type Trusted struct {
	Cluster string      `json:"cluster"`
	Keys    []PublicKey `json:"keys"`
	// Revoked are the ids of tokens that are not good any more though they have not expired, with the end of each in seconds
	// since 1970.
	Revoked map[string]int64 `json:"revoked,omitempty"`
}

// maxTrusted bounds the document, in bytes.
const maxTrusted = 16 << 20

// ErrRefused is wrapped by every error about a token that is not good. The errors are one line, which says what to do.
var ErrRefused = errors.New("the user token is refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	now     func() time.Time
	trusted atomic.Pointer[trusted]
	refresh atomic.Pointer[func()]
}

type trusted struct {
	cluster string
	keys    map[string]ed25519.PublicKey
	revoked map[string]int64
}

// NewVerifier makes a verifier that takes no token before it believes a document. now is the clock.
func NewVerifier(now func() time.Time) *Verifier { return &Verifier{now: now} }

// Believe takes a newer document in place of the one before. A token that it lists as revoked is refused from now on.
func (v *Verifier) Believe(document []byte) error {
	if len(document) > maxTrusted {
		return fmt.Errorf("keys of user tokens: %d bytes, %d are allowed", len(document), maxTrusted)
	}
	var d Trusted
	if err := json.Unmarshal(document, &d); err != nil {
		return fmt.Errorf("keys of user tokens: %w", err)
	}
	if d.Cluster == "" {
		return errors.New("keys of user tokens: of no cluster")
	}
	t := &trusted{cluster: d.Cluster, keys: map[string]ed25519.PublicKey{}, revoked: d.Revoked}
	for _, k := range d.Keys {
		if len(k.Key) != ed25519.PublicKeySize || k.ID == "" {
			return fmt.Errorf("keys of user tokens: key %q has %d bytes, want %d", k.ID, len(k.Key), ed25519.PublicKeySize)
		}
		t.keys[k.ID] = k.Key
	}
	v.trusted.Store(t)
	return nil
}

// Refresh makes the verifier call f before each token that it looks at: f calls Believe when there is something newer. Namenodes,
// which have the keys, need not wait to be told.
func (v *Verifier) Refresh(f func()) { v.refresh.Store(&f) }

func (v *Verifier) current() *trusted {
	if f := v.refresh.Load(); f != nil {
		(*f)()
	}
	return v.trusted.Load()
}

// Verify checks a token. Errors wrap ErrRefused.
func (v *Verifier) Verify(token string) (*Claims, error) {
	if len(token) > MaxToken {
		return nil, refuse("it has %d bytes, %d are allowed", len(token), MaxToken)
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if algorithm, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
		return nil, refuse("it is signed by the algorithm %q, only EdDSA is taken: it was not made by this cluster", fmt.Sprintf("%.20s", algorithm.Got))
	}
	if err != nil {
		return nil, refuse("it cannot be read, perhaps it was cut off: give the whole of it")
	}
	header := signed.Signatures[0].Protected
	if kind, _ := header.ExtraHeaders[jose.HeaderType].(string); kind != typ {
		return nil, refuse("it is another kind of token: `hops login` gets one of this cluster")
	}
	t := v.current()
	if t == nil {
		return nil, refuse("this server has not heard of the cluster's keys yet: try again")
	}
	key, ok := t.keys[header.KeyID]
	if !ok {
		if cluster := claimedCluster(signed); cluster != "" && cluster != t.cluster {
			return nil, refuse("it says that it is of cluster %q, this is %s: `hops login` to this cluster", cluster, t.cluster)
		}
		return nil, refuse("it is signed by a key that cluster %s does not have: it is forged, or so old that its key has gone: `hops login` gets another one", t.cluster)
	}
	text, err := signed.Verify(key)
	if err != nil {
		return nil, refuse("its signature is wrong: it was changed, or is forged")
	}
	var p payload
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, refuse("what it says cannot be read")
	}
	c := &Claims{
		Cluster: strings.TrimPrefix(p.Issuer, issuerPrefix), User: p.Subject, Groups: p.Groups, ID: p.ID,
		Issued: time.Unix(p.Issued, 0).UTC(), Expires: time.Unix(p.Expires, 0).UTC(),
	}
	if p.Issuer != issuerPrefix+t.cluster {
		return nil, refuse("it was issued by %q, not by cluster %s", p.Issuer, t.cluster)
	}
	if err := c.Validate(); err != nil {
		return nil, refuse("what it says is not allowed: %v", err)
	}
	if err := t.good(c, v.now()); err != nil {
		return nil, err
	}
	return c, nil
}

// Good tells whether claims that were found good before still are: a connection that began with them goes on only as long.
// Errors wrap ErrRefused.
func (v *Verifier) Good(c *Claims) error {
	t := v.current()
	if t == nil || t.cluster != c.Cluster {
		return refuse("this server has not heard of the keys of cluster %s", c.Cluster)
	}
	return t.good(c, v.now())
}

func (t *trusted) good(c *Claims, now time.Time) error {
	const clock = "2006-01-02 15:04:05Z"
	now = now.UTC()
	if _, revoked := t.revoked[c.ID]; revoked {
		return refuse("token %s of %s was revoked: `hops login` gets another one", c.ID, c.User)
	}
	if ahead := c.Issued.Sub(now); ahead > MaxSkew {
		return refuse("token %s of %s begins at %s, and by this server's clock it is %s, %v earlier: set the clocks of the servers",
			c.ID, c.User, c.Issued.Format(clock), now.Format(clock), ahead.Round(time.Second))
	}
	if !now.Before(c.Expires) {
		return refuse("token %s of %s expired at %s; by this server's clock it is %s: `hops login` gets another one",
			c.ID, c.User, c.Expires.Format(clock), now.Format(clock))
	}
	return nil
}

// claimedCluster is of which cluster a token says that it is. Nothing but a message may depend on it.
func claimedCluster(signed *jose.JSONWebSignature) string {
	var p struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &p) != nil || len(p.Issuer) > MaxName {
		return ""
	}
	return strings.TrimPrefix(p.Issuer, issuerPrefix)
}
