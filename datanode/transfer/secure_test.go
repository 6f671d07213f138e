package transfer

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func (t *testTrust) Password(_ context.Context, identifier []byte) ([]byte, error) {
	return t.keys.Password(identifier, time.Now())
}

func (t *testTrust) EncryptionKey(_ context.Context, id int32, nonce []byte) ([]byte, int32, error) {
	return t.keys.EncryptionKey(id, nonce)
}

// secretOf is that of who has a block token.
func secretOf(g security.BlockGrant, qualities ...sasl.Quality) *dtp.Secret {
	t := trusted.keys.Sign(g, time.Now().Add(time.Hour))
	return dtp.TokenSecret(t.Identifier, t.Password, qualities)
}

// encryption is the secret of who has a data encryption key.
func encryption(t testing.TB) *dtp.Secret {
	key, id, err := trusted.keys.EncryptionKey(0, []byte("nonce"))
	check(t, err)
	return dtp.KeySecret(&hadooppb.DataEncryptionKeyProto{KeyId: new(uint32(id)), BlockPoolId: new(pool), Nonce: []byte("nonce"), EncryptionKey: key})
}

// tap sees what goes over a connection.
type tap struct {
	net.Conn
	seen bytes.Buffer
}

func (c *tap) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.seen.Write(p[:n])
	return n, err
}

func (c *tap) Write(p []byte) (int, error) {
	c.seen.Write(p)
	return c.Conn.Write(p)
}

// secured is a connection after the handshake, and what is seen on the wire.
func secured(t testing.TB, d *node, s *dtp.Secret) (*client, *tap) {
	t.Helper()
	c := dial(t, d)
	wire := &tap{Conn: c.Conn}
	var err error
	c.Conn, err = dtp.Secure(wire, s)
	check(t, err)
	c.r = dtp.NewReader(c.Conn)
	return c, wire
}

// Blocks are written through three datanodes, copied and read with each quality of protection, and nobody sees them on the way who must not.
func TestProtectedTransfers(t *testing.T) {
	b := block(7, 1001, 0)
	g := grant(b.ID, anyMode)
	for _, x := range []struct {
		name   string
		change func(*Config)
		secret func(testing.TB) *dtp.Secret
		open   bool // what is transferred can be read on the wire
	}{
		{
			"authentication", func(c *Config) { c.Protection = []sasl.Quality{sasl.Authentication} },
			func(testing.TB) *dtp.Secret { return secretOf(g, sasl.Authentication) }, true,
		},
		{"integrity", func(c *Config) { c.Protection = []sasl.Quality{sasl.Integrity} }, func(testing.TB) *dtp.Secret { return secretOf(g, sasl.Integrity) }, true},
		{"privacy", func(c *Config) { c.Protection = []sasl.Quality{sasl.Privacy} }, func(testing.TB) *dtp.Secret { return secretOf(g, sasl.Privacy) }, false},
		{"encryption", func(c *Config) { c.Encrypt = true }, encryption, false},
		{"encryption of who has a block token", func(c *Config) { c.Encrypt = true }, func(testing.TB) *dtp.Secret { return secretOf(g, sasl.Privacy) }, false},
		{"privacy where nothing is asked for", func(*Config) {}, func(testing.TB) *dtp.Secret { return secretOf(g, sasl.Privacy) }, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			nodes := []*node{startOne(t, x.change), startOne(t, x.change), startOne(t, x.change)}
			data := bytes.Repeat([]byte("what is written here can be told from noise. "), 5000)
			c, wire := secured(t, nodes[0], x.secret(t))
			op := &hadooppb.OpWriteBlockProto{
				Header: header(b, "DFSClient_NONMAPREDUCE_1"), Stage: stageCreate.Enum(), PipelineSize: new(uint32(3)),
				MinBytesRcvd: new(uint64), MaxBytesRcvd: new(uint64), LatestGenerationStamp: new(uint64), RequestedChecksum: dtp.DefaultChecksum.Proto(),
				Targets: []*hadooppb.DatanodeInfoProto{nodes[1].info, nodes[2].info},
			}
			check(t, dtp.WriteOp(c, dtp.OpWriteBlock, op))
			m, err := dtp.ReadResponse(c.r)
			check(t, err)
			check(t, dtp.CheckResponse(dtp.OpWriteBlock, m))
			c.writeAll(0, data, "S S S")
			for _, d := range nodes {
				c, _ := secured(t, d, x.secret(t))
				got, err := c.read(b, 3, int64(len(data)-3))
				check(t, err)
				if !bytes.Equal(got, data[3:]) {
					t.Fatal("what was read is not what was written")
				}
			}
			if got := bytes.Contains(wire.seen.Bytes(), data[:40]); got != x.open {
				t.Errorf("readable on the wire: %v, want %v", got, x.open)
			}
			to := startOne(t, x.change)
			done := block(7, 1001, int64(len(data)))
			check(t, nodes[0].srv.Replicate(t.Context(), pool, done, to.info, hadooppb.StorageTypeProto_DISK, 0, nil))
			c, _ = secured(t, to, x.secret(t))
			got, err := c.read(done, 0, 40)
			check(t, err)
			if !bytes.Equal(got, data[:40]) {
				t.Error("the copy is another one")
			}
		})
	}
}

func TestHandshakesThatAreRefused(t *testing.T) {
	g := grant(7, anyMode)
	old := trusted.keys.Sign(g, time.Now().Add(-time.Second))
	good := trusted.keys.Sign(g, time.Now().Add(time.Hour))
	private := func(c *Config) { c.Protection = []sasl.Quality{sasl.Privacy} }
	wrong := encryption(t)
	wrong.Password = "guess"
	for _, x := range []struct {
		name   string
		secret *dtp.Secret
		words  string
	}{
		{"a quality that is too low", secretOf(g, sasl.Authentication), "quality of protection refused"},
		{"a token that has expired", dtp.TokenSecret(old.Identifier, old.Password, []sasl.Quality{sasl.Privacy}), "it has expired"},
		{"an identifier without its password", dtp.TokenSecret(good.Identifier, []byte("guess"), []sasl.Quality{sasl.Privacy}), "Mismatched response"},
		{"no token at all", dtp.TokenSecret([]byte{}, []byte{}, []sasl.Quality{sasl.Privacy}), "identifier cannot be read"},
		{"another encryption key", wrong, "Mismatched response"},
		{"an encryption key of a block key that is gone", &dtp.Secret{Name: "-2147483648 " + pool + " bm9uY2U=", Password: "x", Qualities: []sasl.Quality{sasl.Privacy}}, "no longer in use"},
		{"a name that is none of an encryption key", &dtp.Secret{Name: "x y z", Password: "x", Qualities: []sasl.Quality{sasl.Privacy}}, "no name of one"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := dial(t, startOne(t, private))
			if _, err := dtp.Secure(c.Conn, x.secret); err == nil || !strings.Contains(err.Error(), x.words) {
				t.Errorf("%v, want %s", err, x.words)
			}
		})
	}
	for name, change := range map[string]func(*Config){
		"no handshake where protection is asked for": private,
		"no handshake where encryption is":           func(c *Config) { c.Encrypt = true },
		"a stranger without a handshake":             func(c *Config) { c.Prove = func(net.Conn) bool { return true } },
	} {
		t.Run(name, func(t *testing.T) {
			d := startOne(t, change)
			if _, err := dial(t, d).read(block(7, 1001, 0), 0, 1); err == nil || !strings.Contains(err.Error(), "only after a handshake of SASL") {
				t.Errorf("%v", err)
			}
		})
	}
}
