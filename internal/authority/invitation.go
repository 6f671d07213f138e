package authority

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Token is what a machine joins with, pasted from the terminal of a machine that is in. It says which authority is the
// right one, so that nobody in between can pose as the cluster, and it is a secret.
type Token struct {
	Authority Fingerprint
	ID        string
	Secret    [16]byte
}

const tokenVersion = "hops1"

// String is the token as it is pasted.
func (t Token) String() string {
	return strings.Join([]string{tokenVersion, t.ID, base64.RawURLEncoding.EncodeToString(append(t.Authority[:], t.Secret[:]...))}, ".")
}

// ParseToken reads a token as it was pasted.
func ParseToken(text string) (Token, error) {
	var t Token
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 || parts[0] != tokenVersion || len(parts[1]) == 0 || len(parts[1]) > 32 {
		return t, errors.New("that is no token to join with: it begins with hops1. and has three parts; `hops cluster token` prints one")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(b) != len(t.Authority)+len(t.Secret) {
		return t, errors.New("the token is cut off or was changed on its way: copy it again as a whole")
	}
	t.ID = parts[1]
	copy(t.Authority[:], b)
	copy(t.Secret[:], b[len(t.Authority):])
	return t, nil
}

// key signs what a machine asks for when it joins. The secret itself is shown to nobody.
func (t Token) key() ed25519.PrivateKey {
	seed := sha256.Sum256(append([]byte("hops key of a token to join with"), t.Secret[:]...))
	return ed25519.NewKeyFromSeed(seed[:])
}

// asking is what a proof is of: what is asked for, on one connection.
func asking(bound, asked []byte) []byte {
	sum := sha256.Sum256(asked)
	return append(append([]byte("hops join"), bound...), sum[:]...)
}

// Prove shows knowledge of the token: for what is asked for, and on the connection whose keying material is bound (RFC 9266), so that
// it is good nowhere else.
func (t Token) Prove(bound, asked []byte) []byte { return ed25519.Sign(t.key(), asking(bound, asked)) }

// Invitation is what the cluster keeps of a token: not its secret.
type Invitation struct {
	ID      string
	Key     ed25519.PublicKey // of the secret
	Roles   []Role            // that may be asked for
	Expires time.Time
	Uses    int // that are left
}

// ErrToken: a token lets nobody in.
var ErrToken = errors.New("the token is refused")

// NewInvitation draws a token, and what the cluster keeps of it.
func NewInvitation(authority Fingerprint, roles []Role, expires time.Time, uses int) (Token, Invitation) {
	t := Token{Authority: authority}
	rand.Read(t.Secret[:]) // never fails (crypto/rand)
	id := make([]byte, 4)
	rand.Read(id)
	t.ID = hex.EncodeToString(id)
	return t, Invitation{ID: t.ID, Key: t.key().Public().(ed25519.PublicKey), Roles: roles, Expires: expires, Uses: uses}
}

// Admit says whether the token lets a machine with these roles in now, which showed proof of what it asked for on the connection that
// bound is of. The caller counts the use. Errors are ErrToken, with the reason for who knows the secret.
func (i *Invitation) Admit(proof, bound, asked []byte, roles []Role, now time.Time) error {
	if len(i.Key) != ed25519.PublicKeySize || !ed25519.Verify(i.Key, asking(bound, asked), proof) {
		return fmt.Errorf("%w: the cluster does not know it: it was withdrawn, or is of another cluster", ErrToken)
	}
	if !now.Before(i.Expires) {
		return fmt.Errorf("%w: it ended at %s: `hops cluster token` prints a new one", ErrToken, i.Expires.UTC().Format(time.RFC3339))
	}
	if i.Uses <= 0 {
		return fmt.Errorf("%w: it was used as often as it may be: `hops cluster token` prints a new one", ErrToken)
	}
	for _, r := range roles {
		if !slices.Contains(i.Roles, r) {
			return fmt.Errorf("%w: it is for %s, not for %s", ErrToken, join(i.Roles), r)
		}
	}
	return nil
}
