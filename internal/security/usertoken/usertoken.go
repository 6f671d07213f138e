// Package usertoken is how a user shows to any server of the cluster who they are: a signed token that names the user, which a
// server checks without asking anybody. It is a JWT (RFC 7519) signed with Ed25519 (RFC 8037) and nothing else. Namenodes hold the
// keys that sign; servers have the public halves and the list of the tokens that were revoked, in a document (Trusted) that
// they are told of when it changes (Verifier.Believe).
package usertoken

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
)

// Limits of a token.
const (
	// MaxToken is the length of the longest token, in bytes.
	MaxToken = 8 << 10
	// MaxLife is how long a token may be good.
	MaxLife = 30 * 24 * time.Hour
	// MaxName is the length of the longest name of a user or group, in bytes, and MaxGroups how many groups a token may carry.
	MaxName   = 256
	MaxGroups = 64
	// MaxSkew is how far the clock of a server may be behind that of the namenode that issued a token.
	MaxSkew = 5 * time.Minute
)

// typ is the type that a token says it is (RFC 8725, 3.11): no other JWT passes for one.
const typ = "hops-user+jwt"

// Claims are what a token says.
type Claims struct {
	// Cluster is the id of the cluster that issued it.
	Cluster string
	User    string
	// Groups of the user, the first one primary; nil: servers find them as they find those of any user.
	Groups []string
	// ID is the token's own.
	ID              string
	Issued, Expires time.Time
}

// payload is how claims are written. Times are in seconds since 1970.
type payload struct {
	Issuer  string   `json:"iss"`
	Subject string   `json:"sub"`
	Groups  []string `json:"groups,omitzero"` // [] is not the same as none
	ID      string   `json:"jti"`
	Issued  int64    `json:"iat"`
	Expires int64    `json:"exp"`
}

// issuerPrefix stands before the id of the cluster in iss.
const issuerPrefix = "hops://"

// CheckName refuses what no user or group of a token is called: names come into logs, paths and the metadata log, and are cut at
// "/" and "@" where Hadoop's names are taken.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > MaxName:
		return fmt.Errorf("the name has %d bytes, %d are allowed", len(name), MaxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) || strings.ContainsAny(name, "/@,:"):
		return fmt.Errorf("%q is no name: it may have no spaces, and none of / @ , :", name)
	}
	return nil
}

// Validate says what is wrong with claims.
func (c *Claims) Validate() error {
	if c.Cluster == "" || c.ID == "" || len(c.ID) > MaxName {
		return errors.New("the cluster's id or the token's own is missing")
	}
	if err := CheckName(c.User); err != nil {
		return fmt.Errorf("user: %w", err)
	}
	if len(c.Groups) > MaxGroups {
		return fmt.Errorf("%d groups, %d are allowed", len(c.Groups), MaxGroups)
	}
	for _, g := range c.Groups {
		if err := CheckName(g); err != nil {
			return fmt.Errorf("group: %w", err)
		}
	}
	if life := c.Expires.Sub(c.Issued); life <= 0 || life > MaxLife {
		return fmt.Errorf("it would be good for %v, and up to %v are allowed", life, MaxLife)
	}
	return nil
}

// NewID draws the id of a token, or of a key.
func NewID() string {
	b := make([]byte, 10)
	rand.Read(b) // never fails (crypto/rand)
	return strings.ToLower(base32.StdEncoding.EncodeToString(b))
}

// Key signs tokens. It does not change.
type Key struct {
	ID      string
	private ed25519.PrivateKey
}

// NewKey draws a key.
func NewKey() Key {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return Key{ID: NewID(), private: private}
}

// Seed is the secret of a key: who has it can be every user.
func (k Key) Seed() []byte { return k.private.Seed() }

// KeyOf makes a key again of its id and seed.
func KeyOf(id string, seed []byte) (Key, error) {
	if len(seed) != ed25519.SeedSize || id == "" {
		return Key{}, fmt.Errorf("a key of %d bytes with the id %q, want %d bytes", len(seed), id, ed25519.SeedSize)
	}
	return Key{ID: id, private: ed25519.NewKeyFromSeed(seed)}, nil
}

// Public is the half that servers check with.
func (k Key) Public() PublicKey {
	return PublicKey{ID: k.ID, Key: k.private.Public().(ed25519.PublicKey)}
}

// Sign makes the token of claims, whose times are cut to seconds.
func (k Key) Sign(c Claims) (string, error) {
	if err := c.Validate(); err != nil {
		return "", err
	}
	text, err := json.Marshal(payload{
		Issuer: issuerPrefix + c.Cluster, Subject: c.User, Groups: c.Groups, ID: c.ID, Issued: c.Issued.Unix(), Expires: c.Expires.Unix(),
	})
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: k.private, KeyID: k.ID}}, (&jose.SignerOptions{}).WithType(typ))
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(text)
	if err != nil {
		return "", err
	}
	token, err := signed.CompactSerialize()
	if err == nil && len(token) > MaxToken {
		err = fmt.Errorf("the token has %d bytes, %d are allowed: name fewer groups", len(token), MaxToken)
	}
	return token, err
}
