package yarntoken

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // what Hadoop's tokens have
	"encoding/binary"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// The kinds of tokens, by Hadoop's names.
const (
	MasterKind    = "YARN_AM_RM_TOKEN"
	NodeKind      = "NMToken"
	ContainerKind = "ContainerToken"
)

// Period is how long one key signs (yarn.resourcemanager.am-rm-tokens.master-key-rolling-interval-secs and its likes are a day, too).
const Period = 24 * time.Hour

// KeyID numbers the period that a moment lies in.
func KeyID(now time.Time) int32 { return int32(now.UnixMilli() / Period.Milliseconds()) }

// current reports whether a token of a key counts at a moment.
func current(id int32, now time.Time) bool {
	n := KeyID(now)
	return id >= n-1 && id <= n+1
}

// Issuer makes tokens, and checks those of masters. It is safe for concurrent use.
type Issuer struct {
	mac func(purpose string, parts ...[]byte) []byte
}

// NewIssuer makes an issuer from the MAC of the cluster's secret (security.Secret.MAC).
func NewIssuer(mac func(purpose string, parts ...[]byte) []byte) *Issuer { return &Issuer{mac} }

// key is the key of a kind of token and a period; node is empty for those of masters.
func (i *Issuer) key(kind string, id int32, node rm.NodeID) []byte {
	var number [4]byte
	binary.BigEndian.PutUint32(number[:], uint32(id))
	return i.mac("yarn token", []byte(kind), []byte{0}, number[:], []byte(node))
}

// NodeKey is the key of one period of what one node manager checks.
type NodeKey struct {
	ID int32
	// Node signs NMTokens, Container ContainerTokens.
	Node, Container []byte
}

// NodeKeys are the keys of a node that count at a moment, with the next one, by ascending id: enough for a node manager that hears
// nothing for a period.
func (i *Issuer) NodeKeys(now time.Time, node rm.NodeID) []NodeKey {
	var out []NodeKey
	n := KeyID(now)
	for id := n - 1; id <= n+1; id++ {
		out = append(out, NodeKey{id, i.key(NodeKind, id, node), i.key(ContainerKind, id, node)})
	}
	return out
}

// Verifier checks the tokens that a node manager is shown, by the keys of its node. It does not change.
type Verifier struct{ keys []NodeKey }

// NewVerifier makes a verifier. Without keys it takes no token.
func NewVerifier(keys []NodeKey) *Verifier { return &Verifier{slices.Clone(keys)} }

// find is the key of a period; illegal is the error for a token of one that does not count. A key that counts and that the node has not
// been given yet, as before its first orders, is no fault of the token: metadata.ErrRetriable.
func (v *Verifier) find(id int32, now time.Time, illegal error) (NodeKey, error) {
	k := slices.IndexFunc(v.keys, func(k NodeKey) bool { return k.ID == id })
	switch {
	case !current(id, now):
		return NodeKey{}, illegal
	case k < 0:
		return NodeKey{}, metadata.Errorf(metadata.ErrRetriable, "this NodeManager has not been told yet how to check tokens of key %d: ask again in a moment", id)
	}
	return v.keys[k], nil
}

// sign is the password of an identifier.
func sign(key, identifier []byte) []byte {
	h := hmac.New(sha1.New, key)
	h.Write(identifier)
	return h.Sum(nil)
}
