// Package issuer is who gives users their tokens: it has the keys that sign them and knows which tokens there are. Both are kept in
// the namespace's register, so that any namenode that leads goes on where another one stopped.
//
// Of the keys two are live: one signs, the other is known to every server and takes over when the first has signed for RollEvery.
// A key that signs no more is kept until its last token has expired.
package issuer

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gohops/hops/internal/security/usertoken"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/roster"
)

const (
	// RollEvery is how long a key signs.
	RollEvery = 30 * 24 * time.Hour
	// DefaultLife is how long a token is good unless somebody says otherwise.
	DefaultLife = 12 * time.Hour
	// maxTokens bounds the tokens that are good, and maxOfUser those of one user.
	maxTokens = 50_000
	maxOfUser = 200
	// swept is how many tokens that are over go with each change.
	swept = 32
	// attempts that a decision makes when others decide at the same time.
	attempts = 10
)

// The items of the register.
const (
	keysItem   = "user-token-keys"
	tokenItems = "user-token/"
)

// Config of an issuer.
type Config struct {
	Register roster.Register
	// Seal is 32 bytes that the namenodes know and the register does not have: without it the keys in the log, in snapshots and in
	// backups sign nothing.
	Seal []byte
	// Cluster is the cluster's id, which tokens name.
	Cluster string
	Now     func() time.Time
}

// Issuer is safe for concurrent use.
type Issuer struct {
	Config
	seal cipher.AEAD

	mu       sync.Mutex
	document []byte
	at       uint64 // version of the register that the document is of
}

// New makes an issuer. It reads nothing yet.
func New(c Config) (*Issuer, error) {
	block, err := aes.NewCipher(c.Seal)
	if err != nil {
		return nil, fmt.Errorf("the seal of the keys of user tokens: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &Issuer{Config: c, seal: aead}, nil
}

// kept is the item of the keys, the newest last: the last but one signs.
type kept struct {
	Keys []keptKey `json:"keys"`
}

type keptKey struct {
	usertoken.PublicKey
	Sealed []byte `json:"sealed"`
	// Signs is when the key began to sign; zero: it does not yet.
	Signs time.Time `json:"signs,omitzero"`
}

// Token is what is kept of a token: never the token itself.
type Token struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Groups  []string  `json:"groups,omitempty"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	// Certificate: it is a client's certificate, and no token.
	Certificate bool `json:"certificate,omitempty"`
	// By is who it was issued to the user by, or how the user came in.
	By string `json:"by"`
	// Revoked is when it was revoked; zero: it is good.
	Revoked time.Time `json:"revoked,omitzero"`
}

// Request for a token.
type Request struct {
	User   string
	Groups []string
	// Life is how long it is good; 0: DefaultLife.
	Life time.Duration
	By   string

	certificate bool
}

// ErrTooMany: a limit would be exceeded.
var ErrTooMany = errors.New("too many user tokens")

var errRaced = metadata.Errorf(metadata.ErrRetriable, "others changed the user tokens at the same time: try again")

// decide runs a decision until its changes are done.
func (i *Issuer) decide(ctx context.Context, decision func() ([]roster.Change, error)) error {
	for range attempts {
		changes, err := decision()
		if err != nil || len(changes) == 0 {
			return err
		}
		done, err := i.Register.Change(ctx, changes...)
		if err != nil || done {
			return err
		}
	}
	return errRaced
}

func changed(name string, value any, version uint64) roster.Change {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // of our own types
	}
	return roster.Change{Name: name, Value: text, Version: version}
}

func (i *Issuer) keys() (*kept, uint64, error) {
	value, version := i.Register.Item(keysItem)
	k := &kept{}
	if value == nil {
		return k, version, nil
	}
	if err := json.Unmarshal(value, k); err != nil || len(k.Keys) < 2 {
		return nil, 0, fmt.Errorf("item %s of the register is damaged: %w", keysItem, errors.Join(err, metadata.ErrCorrupt))
	}
	return k, version, nil
}

// due reports whether keys must be made or the next one take over.
func (i *Issuer) due(k *kept) bool {
	return len(k.Keys) == 0 || i.Now().Sub(k.Keys[len(k.Keys)-2].Signs) >= RollEvery
}

// Due reports whether Roll has something to do.
func (i *Issuer) Due() bool {
	k, _, err := i.keys()
	return err == nil && i.due(k)
}

// Roll makes the first keys of a cluster, or the next one when the one that signs has done so for RollEvery; else it does nothing.
func (i *Issuer) Roll(ctx context.Context) error {
	return i.decide(ctx, func() ([]roster.Change, error) {
		k, version, err := i.keys()
		if err != nil || !i.due(k) {
			return nil, err
		}
		now := i.Now()
		fresh := 1
		if len(k.Keys) == 0 {
			fresh = 2
		}
		for range fresh {
			key := usertoken.NewKey()
			k.Keys = append(k.Keys, keptKey{PublicKey: key.Public(), Sealed: i.sealed(key)})
		}
		k.Keys[len(k.Keys)-2].Signs = now
		for len(k.Keys) > 2 && now.Sub(k.Keys[1].Signs) > usertoken.MaxLife { // since then the first has not signed
			k.Keys = k.Keys[1:]
		}
		return []roster.Change{changed(keysItem, k, version)}, nil
	})
}

func (i *Issuer) sealed(k usertoken.Key) []byte {
	nonce := make([]byte, i.seal.NonceSize())
	rand.Read(nonce) // never fails (crypto/rand)
	return i.seal.Seal(nonce, nonce, k.Seed(), []byte(keysItem+k.ID))
}

// signer is the key that signs.
func (i *Issuer) signer(k *kept) (usertoken.Key, error) {
	own := k.Keys[len(k.Keys)-2]
	size := i.seal.NonceSize()
	if len(own.Sealed) < size {
		return usertoken.Key{}, errors.New("the key of user tokens in the register is cut off")
	}
	seed, err := i.seal.Open(nil, own.Sealed[:size], own.Sealed[size:], []byte(keysItem+own.ID))
	if err != nil {
		return usertoken.Key{}, errors.New("this namenode's cluster secret does not open the keys of user tokens: the secret file is of another cluster")
	}
	return usertoken.KeyOf(own.ID, seed)
}

// Issue makes a token. Errors: metadata.ErrInvalidArgument when the request asks for what is not allowed, ErrTooMany.
func (i *Issuer) Issue(ctx context.Context, r Request) (token string, about Token, err error) {
	if r.Life == 0 {
		r.Life = DefaultLife
	}
	if r.Life < time.Minute || r.Life > usertoken.MaxLife {
		return "", Token{}, metadata.Errorf(metadata.ErrInvalidArgument, "a user token is good for 1m to %v, not for %v", usertoken.MaxLife, r.Life)
	}
	if err := i.Roll(ctx); err != nil {
		return "", Token{}, err
	}
	about, err = i.record(ctx, r, func(about Token) error {
		k, _, err := i.keys()
		if err != nil {
			return err
		}
		key, err := i.signer(k)
		if err != nil {
			return err
		}
		token, err = key.Sign(usertoken.Claims{Cluster: i.Cluster, User: r.User, Groups: r.Groups, ID: about.ID, Issued: about.Issued, Expires: about.Expires})
		if err != nil {
			return metadata.Errorf(metadata.ErrInvalidArgument, "user token: %v", err)
		}
		return nil
	})
	return token, about, err
}

// Certify notes a user's certificate, which make issues. Errors are those of Issue.
func (i *Issuer) Certify(ctx context.Context, r Request, make func(about Token) error) (Token, error) {
	if r.Life == 0 {
		r.Life = DefaultLife
	}
	if r.Life < time.Minute || r.Life > usertoken.MaxLife {
		return Token{}, metadata.Errorf(metadata.ErrInvalidArgument, "a user's certificate is good for 1m to %v, not for %v", usertoken.MaxLife, r.Life)
	}
	if err := usertoken.CheckName(r.User); err != nil {
		return Token{}, metadata.Errorf(metadata.ErrInvalidArgument, "user: %v", err)
	}
	r.certificate = true
	return i.record(ctx, r, make)
}

// record makes a token or certificate, and keeps what there is to know of it.
func (i *Issuer) record(ctx context.Context, r Request, make func(Token) error) (about Token, err error) {
	err = i.decide(ctx, func() ([]roster.Change, error) {
		now := i.Now().UTC().Truncate(time.Second)
		about = Token{ID: usertoken.NewID(), User: r.User, Groups: r.Groups, Issued: now, Expires: now.Add(r.Life), By: r.By, Certificate: r.certificate}
		if err := make(about); err != nil {
			return nil, err
		}
		changes, all, of, err := i.sweep(r.User)
		switch {
		case err != nil:
			return nil, err
		case of >= maxOfUser:
			return nil, fmt.Errorf("%w: %s has %d: `hops user revoke ID` some, or wait until they expire", ErrTooMany, r.User, of)
		case all >= maxTokens:
			return nil, fmt.Errorf("%w: there are %d: revoke some, or issue them for a shorter time", ErrTooMany, all)
		}
		return append(changes, changed(tokenItems+about.ID, about, 0)), nil
	})
	return about, err
}

// sweep are changes that remove tokens that are over, and how many there are beside, all and of a user. Tokens that were revoked
// are over when they expire, like others.
func (i *Issuer) sweep(user string) (changes []roster.Change, all, of int, err error) {
	now := i.Now()
	for name, value := range i.Register.Items(tokenItems) {
		var t Token
		if err := json.Unmarshal(value, &t); err != nil {
			return nil, 0, 0, fmt.Errorf("item %s of the register: %w", name, err)
		}
		if now.After(t.Expires.Add(usertoken.MaxSkew)) {
			if _, version := i.Register.Item(name); len(changes) < swept {
				changes = append(changes, roster.Change{Name: name, Version: version})
			}
			continue
		}
		all++
		if t.User == user {
			of++
		}
	}
	return changes, all, of, nil
}

// Tokens are those that have not expired, by id.
func (i *Issuer) Tokens() ([]Token, error) {
	var out []Token
	now := i.Now()
	for name, value := range i.Register.Items(tokenItems) {
		var t Token
		if err := json.Unmarshal(value, &t); err != nil {
			return nil, fmt.Errorf("item %s of the register: %w", name, err)
		}
		if now.Before(t.Expires) {
			out = append(out, t)
		}
	}
	return out, nil
}

// Revoke makes a token useless, if its user may be told so: allowed decides. It is no error when it was revoked before. Errors:
// metadata.ErrNotExist.
func (i *Issuer) Revoke(ctx context.Context, id string, allowed func(Token) error) error {
	return i.decide(ctx, func() ([]roster.Change, error) {
		value, version := i.Register.Item(tokenItems + id)
		if value == nil {
			return nil, metadata.Errorf(metadata.ErrNotExist, "there is no user token %s, or it has expired: `hops user tokens` lists them", id)
		}
		var t Token
		if err := json.Unmarshal(value, &t); err != nil {
			return nil, fmt.Errorf("item %s%s of the register: %w", tokenItems, id, err)
		}
		if err := allowed(t); err != nil || !t.Revoked.IsZero() {
			return nil, err
		}
		t.Revoked = i.Now().UTC().Truncate(time.Second)
		return []roster.Change{changed(tokenItems+id, t, version)}, nil
	})
}

// RevokedCertificates are the ids of users' certificates that were revoked and have not ended, by the clock of a server that is behind this one
// as far as it may be.
func (i *Issuer) RevokedCertificates() ([]string, error) {
	var out []string
	now := i.Now()
	for name, value := range i.Register.Items(tokenItems) {
		var t Token
		if err := json.Unmarshal(value, &t); err != nil {
			return nil, fmt.Errorf("item %s of the register: %w", name, err)
		}
		if t.Certificate && !t.Revoked.IsZero() && now.Before(t.Expires.Add(usertoken.MaxSkew)) {
			out = append(out, strings.TrimPrefix(name, tokenItems))
		}
	}
	return out, nil
}

// Keys are the public keys and the tokens that were revoked, as of now, in the form that usertoken.Verifier believes; nil while
// there are no keys. Nobody may change it.
func (i *Issuer) Keys() ([]byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	version := i.Register.RegisterVersion() // before it is read: a change in between is seen the next time
	if i.document != nil && i.at == version {
		return i.document, nil
	}
	k, _, err := i.keys()
	if err != nil || len(k.Keys) == 0 {
		return nil, err
	}
	d := usertoken.Trusted{Cluster: i.Cluster, Revoked: map[string]int64{}}
	for _, key := range k.Keys {
		d.Keys = append(d.Keys, key.PublicKey)
	}
	now := i.Now()
	for name, value := range i.Register.Items(tokenItems) {
		var t Token
		if err := json.Unmarshal(value, &t); err != nil {
			return nil, fmt.Errorf("item %s of the register: %w", name, err)
		}
		if !t.Revoked.IsZero() && !t.Certificate && now.Before(t.Expires.Add(usertoken.MaxSkew)) {
			d.Revoked[strings.TrimPrefix(name, tokenItems)] = t.Expires.Unix()
		}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	i.document, i.at = text, version
	return text, nil
}
