package security

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // as Hadoop's balancer signs
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

const (
	tokenPool  = "BP-1804289383-127.0.0.1-1700000000000"
	tokenBlock = metadata.BlockID(1<<30 + 1)
)

var tokenNow = time.UnixMilli(1800000000123)

func blockKeys(s Secret, ids ...int32) *BlockKeys {
	var keys []metadata.BlockKey
	for _, id := range ids {
		keys = append(keys, metadata.BlockKey{ID: id, Seed: metadata.KeySeed(fmt.Sprintf("seed %027d", id))})
	}
	return s.BlockKeys(keys)
}

func readGrant() BlockGrant {
	return BlockGrant{User: "alice", Pool: tokenPool, Block: tokenBlock, Modes: ReadBlock}
}

// The bytes are what Hadoop 3.4's BlockTokenIdentifier.getBytes gives for the same values.
func TestIdentifiersAreHadoops(t *testing.T) {
	for _, v := range []struct {
		grant   BlockGrant
		expires int64
		key     int32
		want    string
	}{
		{readGrant(), 1800000000123, 2, "8a01a3185c507b0200000005616c6963650000002542502d313830343238393338332d3132372e302e302e312d313730303030303030303030308c400000010104524541440000"},
		{
			BlockGrant{"jörg", "BP-1-127.0.0.1-1", -9223372036854775807, WriteBlock | CopyBlock | ReplaceBlock},
			1800000000123, 70000,
			"8a01a3185c507b8d011170000000056ac3b672670000001042502d312d3132372e302e302e312d31807ffffffffffffffe0305575249544504434f5059075245504c4143450000",
		},
	} {
		got := appendIdentifier(nil, v.grant, v.expires, v.key)
		if hex.EncodeToString(got) != v.want {
			t.Errorf("%+v:\n got %x\nwant %s", v.grant, got, v.want)
		}
		id, err := parseIdentifier(got)
		if err != nil || id.expires != v.expires || id.key != v.key || string(id.user) != v.grant.User || string(id.pool) != v.grant.Pool ||
			id.block != int64(v.grant.Block) || id.modes != v.grant.Modes {
			t.Errorf("%+v is read as %+v, %v", v.grant, id, err)
		}
		if user := BlockUser(Token{Identifier: got}); user != v.grant.User {
			t.Errorf("%+v is %q's", v.grant, user)
		}
	}
	// With what Hadoop's namenodes add: storage types, storage ids, a handshake message.
	added, _ := hex.DecodeString("7f87800000000000000000000002044449534b03535344020000000444532d310000000444532d3203010203")
	if id, err := parseIdentifier(added); err != nil || id.expires != 127 || id.key != -129 || id.modes != 0 {
		t.Errorf("read as %+v, %v", id, err)
	}
}

func TestTokenOpensItsBlockOnly(t *testing.T) {
	secret := NewSecret()
	keys := blockKeys(secret, 4, 5, 6)
	good := keys.Sign(readGrant(), tokenNow.Add(time.Hour))
	check := func(k *BlockKeys, tok Token, pool string, b metadata.BlockID, m BlockMode, now time.Time) error {
		return k.Check(tok, pool, b, m, now)
	}
	if err := check(keys, good, tokenPool, tokenBlock, ReadBlock, tokenNow); err != nil {
		t.Fatalf("a good token: %v", err)
	}
	other := func(change func(*BlockGrant)) Token {
		g := readGrant()
		change(&g)
		return keys.Sign(g, tokenNow.Add(time.Hour))
	}
	for name, err := range map[string]error{
		"none":           check(keys, Token{}, tokenPool, tokenBlock, ReadBlock, tokenNow),
		"other mode":     check(keys, good, tokenPool, tokenBlock, WriteBlock, tokenNow),
		"other block":    check(keys, good, tokenPool, tokenBlock+1, ReadBlock, tokenNow),
		"other pool":     check(keys, good, "BP-2-127.0.0.1-1", tokenBlock, ReadBlock, tokenNow),
		"expired":        check(keys, good, tokenPool, tokenBlock, ReadBlock, tokenNow.Add(time.Hour+time.Millisecond)),
		"foreign secret": check(keys, blockKeys(NewSecret(), 4, 5, 6).Sign(readGrant(), tokenNow.Add(time.Hour)), tokenPool, tokenBlock, ReadBlock, tokenNow),
		"dropped key":    check(blockKeys(secret, 6, 7, 8), good, tokenPool, tokenBlock, ReadBlock, tokenNow),
		"no password":    check(keys, Token{Identifier: good.Identifier}, tokenPool, tokenBlock, ReadBlock, tokenNow),
		"half password":  check(keys, Token{good.Identifier, good.Password[:16]}, tokenPool, tokenBlock, ReadBlock, tokenNow),
		"grafted":        check(keys, Token{other(func(g *BlockGrant) { g.Block++ }).Identifier, good.Password}, tokenPool, tokenBlock+1, ReadBlock, tokenNow),
		"no modes":       check(keys, other(func(g *BlockGrant) { g.Modes = 0 }), tokenPool, tokenBlock, ReadBlock, tokenNow),
	} {
		if !errors.Is(err, ErrBlockToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A key that comes later is another matter: whoever knows it has to be asked.
	for _, k := range []*BlockKeys{blockKeys(secret, 3, 4), {}, nil} {
		if err := check(k, good, tokenPool, tokenBlock, ReadBlock, tokenNow); !errors.Is(err, ErrBlockKey) {
			t.Errorf("%v: a key to come: %v", k, err)
		}
	}
	// Keys that were rolled since still check it.
	if err := check(blockKeys(secret, 5, 6, 7, 8), good, tokenPool, tokenBlock, ReadBlock, tokenNow); err != nil {
		t.Errorf("after two rolls: %v", err)
	}
	for at := range good.Identifier {
		for _, bit := range []byte{1, 0x80} {
			bad := Token{bytes.Clone(good.Identifier), good.Password}
			bad.Identifier[at] ^= bit
			if err := check(keys, bad, tokenPool, tokenBlock, ReadBlock, tokenNow); err == nil {
				t.Errorf("identifier with another byte %d is let through", at)
			}
		}
	}
	for at := range good.Password {
		bad := Token{good.Identifier, bytes.Clone(good.Password)}
		bad.Password[at] ^= 1
		if err := check(keys, bad, tokenPool, tokenBlock, ReadBlock, tokenNow); !errors.Is(err, ErrBlockToken) {
			t.Errorf("password with another byte %d: %v", at, err)
		}
	}
}

func TestLastKeyButOneSigns(t *testing.T) {
	secret := NewSecret()
	for want, ids := range map[int32][]int32{1: {1}, 2: {2, 3}, 7: {5, 6, 7, 8}} {
		tok := blockKeys(secret, ids...).Sign(readGrant(), tokenNow)
		if id, err := parseIdentifier(tok.Identifier); err != nil || id.key != want {
			t.Errorf("of %v signs %d (%v), want %d", ids, id.key, err, want)
		}
	}
	if tok := (*BlockKeys)(nil).Sign(readGrant(), tokenNow); tok.Identifier != nil || tok.Password != nil {
		t.Errorf("signed without a key: %x", tok)
	}
}

func TestBlockKeysDoNotShow(t *testing.T) {
	keys := blockKeys(Secret{key: []byte("the secret")}, 1, 2)
	tok := keys.Sign(readGrant(), tokenNow)
	err := keys.Check(Token{tok.Identifier, make([]byte, 32)}, tokenPool, tokenBlock, ReadBlock, tokenNow)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		shown := fmt.Sprintf(verb+verb, keys, err)
		for _, hidden := range []string{"seed", "secret", hex.EncodeToString(tok.Password), string(tok.Password)} {
			if strings.Contains(shown, hidden) {
				t.Errorf("%s shows %q", shown, hidden)
			}
		}
	}
}

// Whatever comes as a token is refused without a panic, or was signed by a key of ours.
func FuzzBlockToken(f *testing.F) {
	keys := blockKeys(Secret{key: []byte("fuzz")}, 1, 2, 3)
	good := keys.Sign(readGrant(), tokenNow.Add(time.Hour))
	f.Add(good.Identifier, good.Password)
	f.Add([]byte{}, []byte{})
	f.Add([]byte{0x8a, 1, 2, 3, 4, 5, 6, 1, 0xff, 0xff, 0xff, 0xff}, good.Password)
	added, _ := hex.DecodeString("7f87800000000000000000000002044449534b03535344020000000444532d310000000444532d3203010203")
	f.Add(added, make([]byte, 32))
	f.Fuzz(func(t *testing.T, identifier, password []byte) {
		err := keys.Check(Token{identifier, password}, tokenPool, tokenBlock, ReadBlock, tokenNow)
		if err == nil && (!bytes.Equal(identifier, good.Identifier) || !bytes.Equal(password, good.Password)) {
			t.Fatalf("a forged token is let through: %x %x", identifier, password)
		}
		id, err := parseIdentifier(identifier)
		if err != nil {
			return
		}
		g := BlockGrant{User: string(id.user), Pool: string(id.pool), Block: metadata.BlockID(id.block), Modes: id.modes}
		again, err := parseIdentifier(appendIdentifier(nil, g, id.expires, id.key))
		if err != nil || again.expires != id.expires || again.key != id.key || !bytes.Equal(again.user, id.user) ||
			!bytes.Equal(again.pool, id.pool) || again.block != id.block || again.modes != id.modes {
			t.Fatalf("%x is %+v, and written again %+v, %v", identifier, id, again, err)
		}
	})
}

func BenchmarkBlockTokenSign(b *testing.B) {
	keys := blockKeys(NewSecret(), 1, 2)
	g := readGrant()
	b.ReportAllocs()
	for b.Loop() {
		keys.Sign(g, tokenNow)
	}
}

func BenchmarkBlockTokenCheck(b *testing.B) {
	keys := blockKeys(NewSecret(), 1, 2)
	tok := keys.Sign(readGrant(), tokenNow)
	b.ReportAllocs()
	for b.Loop() {
		if err := keys.Check(tok, tokenPool, tokenBlock, ReadBlock, tokenNow); err != nil {
			b.Fatal(err)
		}
	}
}

// A balancer of Hadoop signs for nobody, by HMAC-SHA1 under the key that it was given. That is good for moves alone, as long as the block key is kept that its key was made of.
func TestMoveKey(t *testing.T) {
	secret := NewSecret()
	keys := blockKeys(secret, 4, 5, 6)
	given, there := keys.MoveKey()
	if !there || given.ID != -5 {
		t.Fatalf("%d, %t", given.ID, there)
	}
	hadoops := func(data []byte) []byte {
		mac := hmac.New(sha1.New, given.Key)
		mac.Write(data)
		return mac.Sum(nil)
	}
	token := func(key int32, expires time.Time) Token {
		b := AppendVLong(AppendVLong(nil, expires.UnixMilli()), int64(key))
		b = append(b, 0xff, 0xff, 0xff, 0xff) // no user
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(tokenPool))), tokenPool...)
		b = AppendVLong(AppendVLong(b, int64(tokenBlock)), 4)
		for _, mode := range modeNames {
			b = append(AppendVLong(b, int64(len(mode))), mode...)
		}
		b = append(b, 1, 4, 'D', 'I', 'S', 'K', 0)
		return Token{Identifier: b, Password: hadoops(b)}
	}
	good := token(-5, tokenNow.Add(time.Hour))
	for _, mode := range []BlockMode{ReadBlock, WriteBlock, CopyBlock, ReplaceBlock} {
		if err := keys.Check(good, tokenPool, tokenBlock, mode, tokenNow); (err == nil) != (mode == ReplaceBlock) || err != nil && !errors.Is(err, ErrBlockToken) {
			t.Errorf("%v: %v", mode, err)
		}
	}
	if password, err := keys.Password(good.Identifier, tokenNow); err != nil || !bytes.Equal(password, good.Password) {
		t.Errorf("a handshake is keyed by %x, %v", password, err)
	}
	nonce := []byte("8 bytes.")
	if key, id, err := keys.EncryptionKey(-5, nonce); err != nil || id != -5 || !bytes.Equal(key, hadoops(nonce)) {
		t.Errorf("data is encrypted by %x, %d, %v", key, id, err)
	}
	for what, bad := range map[string]struct {
		Token
		want error
		by   *BlockKeys
	}{
		"expired":             {token(-5, tokenNow.Add(-time.Second)), ErrBlockToken, keys},
		"under the block key": {token(5, tokenNow.Add(time.Hour)), ErrBlockToken, keys},
		"under another":       {token(-4, tokenNow.Add(time.Hour)), ErrBlockToken, keys},
		"of a later one":      {token(-7, tokenNow.Add(time.Hour)), ErrBlockKey, keys},
		"the least number":    {token(math.MinInt32, tokenNow.Add(time.Hour)), ErrBlockToken, keys},
		"key forgotten":       {good, ErrBlockToken, blockKeys(secret, 6, 7)},
		"of another cluster":  {good, ErrBlockToken, blockKeys(NewSecret(), 4, 5, 6)},
		"no key":              {good, ErrBlockKey, nil},
	} {
		if err := bad.by.Check(bad.Token, tokenPool, tokenBlock, ReplaceBlock, tokenNow); !errors.Is(err, bad.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, there := (*BlockKeys)(nil).MoveKey(); there {
		t.Error("a key is made of none")
	}
}
