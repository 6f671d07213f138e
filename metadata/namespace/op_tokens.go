package namespace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

const (
	// maxTokenKeys is how many keys of delegation tokens may be kept: with HDFS's times there are nine.
	maxTokenKeys = 64
	// maxTokens bounds what a command may allow: all tokens are in memory.
	maxTokens = 1 << 20
)

// DelegationToken is what a user has who may act as Owner without any other proof, as long as it is good. Its identifier, which
// its bearer shows, says all of it but Expires.
type DelegationToken struct {
	Sequence int32
	// Owner is whom the bearer acts as; RealUser who got it for Owner as a proxy, or empty.
	Owner, RealUser string
	// Renewer may renew and cancel it; empty: nobody may renew it.
	Renewer string
	// Issued; MaxDate, after which it is of no use, however often it was renewed; Expires, after which it is unless it is renewed
	// before.
	Issued, MaxDate, Expires metadata.Time
	// Key is the one that signs it.
	Key int32
}

// token is one of those that are good.
type token struct {
	DelegationToken
	hash uint64
}

// tokens are those that are good.
type tokens struct {
	all  map[int32]*token // by sequence; nobody changes what is in it
	held map[string]int   // how many by holder
}

func newTokens() tokens { return tokens{all: map[int32]*token{}, held: map[string]int{}} }

func tokenKey(sequence int32) string { return idKey(classToken, uint64(sequence)) }

// holder is whose number of tokens it counts for: who got it.
func (d *DelegationToken) holder() string { return cmp.Or(d.RealUser, d.Owner) }

func (d *DelegationToken) encode() []byte {
	return marshal(nil, &logpb.DelegationToken{
		Owner: d.Owner, Renewer: d.Renewer, RealUser: d.RealUser, Issued: int64(d.Issued), MaxDate: int64(d.MaxDate), Key: d.Key,
		Expires: int64(d.Expires),
	})
}

// String names a token as HDFS does in messages.
func (d *DelegationToken) String() string {
	return fmt.Sprintf("token for %s: HDFS_DELEGATION_TOKEN owner=%s, renewer=%s, realUser=%s, issueDate=%d, maxDate=%d, sequenceNumber=%d, masterKeyId=%d",
		d.Owner, d.Owner, d.Renewer, d.RealUser, d.Issued, d.MaxDate, d.Sequence, d.Key)
}

// putToken stores a token in place of the one that had its number.
func (ns *Namespace) putToken(d DelegationToken) {
	ns.dropToken(d.Sequence)
	key, value := tokenKey(d.Sequence), d.encode()
	tok := &token{d, hashRecord([]byte(key), value)}
	ns.changed = true
	ns.tokens.all[d.Sequence] = tok
	ns.tokens.held[d.holder()]++
	ns.hash += tok.hash
	ns.pending[key] = value
}

func (ns *Namespace) dropToken(sequence int32) {
	old := ns.tokens.all[sequence]
	if old == nil {
		return
	}
	ns.changed = true
	delete(ns.tokens.all, sequence)
	if ns.tokens.held[old.holder()]--; ns.tokens.held[old.holder()] == 0 {
		delete(ns.tokens.held, old.holder())
	}
	ns.hash -= old.hash
	ns.pending[tokenKey(sequence)] = nil
}

// rollTokenKey adds a key that signs from now on, and drops those that have signed no token that is still there. False: there is
// a newer key than the proposer knew, and nothing was done.
//
// Errors: ErrInvalidArgument.
func (ns *Namespace) rollTokenKey(t *txn, op *logpb.RollTokenKey) {
	m := &ns.meta
	newest := newestTokenKey(m.tokenKeys)
	if len(op.Seed) != metadata.KeySeedSize || newest == math.MaxInt32 {
		t.failf(metadata.ErrInvalidArgument, "Key %d of delegation tokens has a seed of %d bytes, want %d", newest, len(op.Seed), metadata.KeySeedSize)
		return
	}
	if op.After != newest {
		return
	}
	used := map[int32]bool{}
	for _, tok := range ns.tokens.all {
		used[tok.Key] = true
	}
	keys := make([]*logpb.TokenKey, 0, len(m.tokenKeys)+1)
	for _, k := range m.tokenKeys {
		if used[k.Id] {
			keys = append(keys, k)
		}
	}
	if len(keys) >= maxTokenKeys {
		t.failf(metadata.ErrInvalidArgument, "Keys of delegation tokens are rolled too often: %d are still needed, %d is the limit", len(keys), maxTokenKeys)
		return
	}
	m.tokenKeys, m.tokenRolled = append(keys, &logpb.TokenKey{Id: newest + 1, Seed: op.Seed}), m.logTime
	t.result.OK = true
}

// issueToken makes a token for the caller.
//
// Errors: ErrInvalidArgument; ErrIO when there are too many, or there is no key yet.
func (ns *Namespace) issueToken(t *txn, op *logpb.IssueToken) {
	m := &ns.meta
	d := DelegationToken{
		Owner: t.caller.user, RealUser: op.RealUser, Renewer: op.Renewer, Issued: m.now, MaxDate: metadata.Time(op.MaxDate),
		Expires: min(metadata.Time(op.Expires), metadata.Time(op.MaxDate)), Key: newestTokenKey(m.tokenKeys),
	}
	if d.RealUser == d.Owner {
		d.RealUser = ""
	}
	switch {
	case d.Owner == "" || max(len(d.Owner), len(d.RealUser), len(d.Renewer)) > MaxName:
		t.failf(metadata.ErrInvalidArgument, "A delegation token for a name of %d bytes, by one of %d, with a renewer of %d; 1 to %d are allowed",
			len(d.Owner), len(d.RealUser), len(d.Renewer), MaxName)
		return
	case d.Issued < 0 || d.Expires < d.Issued || d.MaxDate > 1<<53:
		t.failf(metadata.ErrInvalidArgument, "A delegation token from %d to %d", d.Issued, d.Expires)
		return
	case d.Key == 0:
		t.failf(metadata.ErrIO, "Delegation Token can not be issued: there is no key yet")
		return
	case len(ns.tokens.all) >= int(min(op.MaxTokens, maxTokens)):
		t.failf(metadata.ErrIO, "Delegation Token can not be issued: there are %d, which is the limit", len(ns.tokens.all))
		return
	case ns.tokens.held[d.holder()] >= int(min(op.MaxOfUser, maxTokens)):
		t.failf(metadata.ErrIO, "Delegation Token can not be issued: %s has %d, which is the limit; cancel those that are not needed", d.holder(), ns.tokens.held[d.holder()])
		return
	}
	for d.Sequence = following(m.lastToken); ns.tokens.all[d.Sequence] != nil; d.Sequence = following(d.Sequence) {
	}
	m.lastToken = d.Sequence
	ns.putToken(d)
	t.result.OK, t.result.Token = true, &d
}

// following is the number after n, which begins again after the greatest that there is in Java.
func following(n int32) int32 {
	if n == math.MaxInt32 {
		return 1
	}
	return n + 1
}

// find is the token that a command means; nil, and the command is answered: there is none.
func (ns *Namespace) findToken(t *txn, sequence int32, issued int64) *token {
	tok := ns.tokens.all[sequence]
	if tok == nil || int64(tok.Issued) != issued {
		t.failf(metadata.ErrToken, "Token not found: sequenceNumber=%d, issueDate=%d: it was cancelled, or has expired", sequence, issued)
		return nil
	}
	return tok
}

// renewToken makes a token good until the time that the command says, or to its end.
//
// Errors: ErrToken; ErrPermission.
func (ns *Namespace) renewToken(t *txn, op *logpb.RenewToken) {
	tok := ns.findToken(t, op.Sequence, op.Issued)
	if tok == nil {
		return
	}
	d := tok.DelegationToken
	switch {
	case d.MaxDate < ns.meta.now:
		t.failf(metadata.ErrToken, "%s tried to renew an expired token (%v) max expiration date: %d currentTime: %d", t.caller.user, &d, d.MaxDate, ns.meta.now)
		return
	case d.Renewer == "":
		t.failf(metadata.ErrPermission, "%s tried to renew a token (%v) without a renewer", t.caller.user, &d)
		return
	case d.Renewer != t.caller.user:
		t.failf(metadata.ErrPermission, "%s tries to renew a token (%v) with non-matching renewer %s", t.caller.user, &d, d.Renewer)
		return
	}
	d.Expires = max(min(metadata.Time(op.Expires), d.MaxDate), d.Issued)
	ns.putToken(d)
	t.result.OK, t.result.Token = true, &d
}

// cancelToken ends a token.
//
// Errors: ErrToken; ErrPermission.
func (ns *Namespace) cancelToken(t *txn, op *logpb.CancelToken) {
	tok := ns.findToken(t, op.Sequence, op.Issued)
	if tok == nil {
		return
	}
	if user := t.caller.user; user != tok.Owner && (user != tok.Renewer || user == "") {
		t.failf(metadata.ErrPermission, "%s is not authorized to cancel the token (%v)", user, &tok.DelegationToken)
		return
	}
	ns.dropToken(op.Sequence)
	t.result.OK = true
}

// expireTokens ends those that have expired. False: there is none.
func (ns *Namespace) expireTokens(t *txn) {
	for sequence, tok := range ns.tokens.all {
		if tok.Expires < ns.meta.now {
			ns.dropToken(sequence)
			t.result.OK = true
		}
	}
}

func newestTokenKey(keys []*logpb.TokenKey) int32 {
	if len(keys) == 0 {
		return 0
	}
	return keys[len(keys)-1].Id
}

// soundTokenKeys reports whether keys are as rollTokenKey leaves them.
func soundTokenKeys(keys []*logpb.TokenKey) bool {
	before := int32(0)
	for _, k := range keys {
		if k == nil || k.Id <= before || len(k.Seed) != metadata.KeySeedSize {
			return false
		}
		before = k.Id
	}
	return len(keys) <= maxTokenKeys
}

func (ns *Namespace) loadTokens() error {
	var bad error
	err := ns.view.Scan([]byte{classToken}, nil, func(key, value []byte) bool {
		var r logpb.DelegationToken
		if bad = r.UnmarshalVT(value); bad != nil {
			return false
		}
		d := DelegationToken{
			Owner: strings.Clone(r.Owner), Renewer: strings.Clone(r.Renewer), RealUser: strings.Clone(r.RealUser),
			Issued: metadata.Time(r.Issued), MaxDate: metadata.Time(r.MaxDate), Key: r.Key, Expires: metadata.Time(r.Expires),
		}
		if len(key) != 9 {
			bad = fmt.Errorf("record %x", key)
			return false
		}
		id := binary.BigEndian.Uint64(key[1:])
		if id == 0 || id > math.MaxInt32 || d.Owner == "" || string(d.encode()) != string(value) {
			bad = fmt.Errorf("record %x", key)
			return false
		}
		d.Sequence = int32(id)
		ns.tokens.all[d.Sequence] = &token{d, hashRecord(key, value)}
		ns.tokens.held[d.holder()]++
		return true
	})
	if err == nil && bad != nil {
		err = fmt.Errorf("delegation tokens: %w: %w", bad, metadata.ErrCorrupt)
	}
	return err
}

// Token is the delegation token of a number; false when there is none that is good, as far as nobody has found that it has expired.
func (ns *Namespace) Token(sequence int32) (DelegationToken, bool) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if tok := ns.tokens.all[sequence]; tok != nil {
		return tok.DelegationToken, true
	}
	return DelegationToken{}, false
}

// TokenKey is the seed of a key of delegation tokens; false when there is none.
func (ns *Namespace) TokenKey(id int32) (metadata.KeySeed, bool) {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	i := slices.IndexFunc(ns.meta.tokenKeys, func(k *logpb.TokenKey) bool { return k.Id == id })
	if i < 0 {
		return "", false
	}
	return metadata.KeySeed(ns.meta.tokenKeys[i].Seed), true
}

// TokenFigures are what a leader needs to know of delegation tokens.
type TokenFigures struct {
	// Count of tokens, and how many of them have expired by a clock.
	Count, Expired int
	// NewestKey is 0 when there is none; Rolled is when it came.
	NewestKey int32
	Rolled    LogTime
}

// TokenFigures counts the tokens.
func (ns *Namespace) TokenFigures(now metadata.Time) TokenFigures {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	f := TokenFigures{Count: len(ns.tokens.all), NewestKey: newestTokenKey(ns.meta.tokenKeys), Rolled: ns.meta.tokenRolled}
	for _, tok := range ns.tokens.all {
		if tok.Expires < now {
			f.Expired++
		}
	}
	return f
}
