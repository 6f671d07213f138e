package dtp

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/gohops/hops/internal/sasl"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// The digest-uri of data transfer is "hdfs/0" (SaslParticipant).
const (
	saslService = "hdfs"
	saslServer  = "0"
)

const (
	// wrapAt is how much is wrapped at a time.
	wrapAt = 64 << 10
	// maxWrapped is how large a wrapped message may be that a peer sends.
	maxWrapped = MaxPacket + 64<<10
	// cipherKey is the size of a key of AES, in bytes.
	cipherKey = 16
)

// Acceptor is the datanode's side of a handshake.
type Acceptor struct {
	// Qualities of protection that are offered.
	Qualities []sasl.Quality
	// Password is that which goes with the identifier of a block token, EncryptionKey the key that goes with a nonce that the namenode gave
	// out. Their errors refuse the peer as one whose token, or key, is not good (any more).
	Password      func(identifier []byte) ([]byte, error)
	EncryptionKey func(keyID int32, pool string, nonce []byte) ([]byte, error)
}

// Secret is what a client proves to a datanode: a block token, or a data encryption key of the namenode's.
type Secret struct {
	Name, Password string
	Qualities      []sasl.Quality
}

// TokenSecret is the secret of who has a block token.
func TokenSecret(identifier, password []byte, qualities []sasl.Quality) *Secret {
	return &Secret{Name: sasl.EncodeName(identifier), Password: sasl.EncodePassword(password), Qualities: qualities}
}

// KeySecret is the secret of who has a data encryption key: with it everything is encrypted.
func KeySecret(k *hadooppb.DataEncryptionKeyProto) *Secret {
	name := strconv.FormatUint(uint64(k.GetKeyId()), 10) + " " + k.GetBlockPoolId() + " " + base64.StdEncoding.EncodeToString(k.GetNonce())
	return &Secret{Name: name, Password: sasl.EncodePassword(k.GetEncryptionKey()), Qualities: []sasl.Quality{sasl.Privacy}}
}

// IsSecure reports whether a peer begins with a handshake.
func IsSecure(r *bufio.Reader) (bool, error) {
	head, err := r.Peek(2)
	return err == nil && binary.BigEndian.Uint16(head) == saslMagic>>16, err
}

// errKey marks the refusal of an encryption key, which clients then get anew.
var errKey = errors.New("encryption key refused")

// Accept takes a peer's handshake, whose first bytes r has, and returns the connection on which requests follow, to be read through the
// reader. A peer that is refused is told why.
func Accept(conn net.Conn, r *bufio.Reader, a Acceptor) (net.Conn, *bufio.Reader, error) {
	layer, option, err := accept(conn, r, a)
	if err != nil {
		m := &hadooppb.DataTransferEncryptorMessageProto{Status: hadooppb.DataTransferEncryptorMessageProto_ERROR.Enum(), Message: new(err.Error())}
		switch {
		case errors.Is(err, errKey):
			m.Status = hadooppb.DataTransferEncryptorMessageProto_ERROR_UNKNOWN_KEY.Enum()
		case errors.Is(err, errToken):
			m.AccessTokenError = new(true)
		}
		_ = writeMessage(conn, m) // fails when nobody is there to be told
		return nil, nil, err
	}
	return secured(conn, r, layer, option, true)
}

// errToken marks the refusal of a block token.
var errToken = errors.New("block token refused")

func accept(conn net.Conn, r *bufio.Reader, a Acceptor) (sasl.Layer, *hadooppb.CipherOptionProto, error) {
	var magic [4]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return nil, nil, inside(err)
	}
	if binary.BigEndian.Uint32(magic[:]) != saslMagic {
		return nil, nil, violation("a handshake begins with %x", magic)
	}
	m := sasl.NewAcceptor(sasl.AcceptorConfig{
		Service: saslService, Server: saslServer, Qualities: a.Qualities, Lookup: a.lookup,
	})
	var request hadooppb.DataTransferEncryptorMessageProto
	if err := ReadMessage(r, &request); err != nil {
		return nil, nil, err
	}
	challenge, _, err := m.Step(request.GetPayload())
	if err != nil {
		return nil, nil, err
	}
	if err := writeMessage(conn, success(challenge)); err != nil {
		return nil, nil, err
	}
	request = hadooppb.DataTransferEncryptorMessageProto{}
	if err := ReadMessage(r, &request); err != nil {
		return nil, nil, err
	}
	proof, _, err := m.Step(request.GetPayload())
	if err != nil {
		return nil, nil, err
	}
	answer, layer := success(proof), m.Layer()
	var option *hadooppb.CipherOptionProto
	for _, o := range request.CipherOption {
		if o.GetSuite() == hadooppb.CipherSuiteProto_AES_CTR_NOPADDING && layer != nil && sasl.IsPrivate(layer) {
			if option, err = newOption(); err == nil {
				answer.CipherOption, err = wrapOption(layer, option)
			}
			break
		}
	}
	if err == nil {
		err = writeMessage(conn, answer)
	}
	return layer, option, err
}

// lookup finds the password of a name: "key pool nonce" of an encryption key, or the identifier of a block token.
func (a *Acceptor) lookup(name string) (string, sasl.Identity, error) {
	if parts := strings.Split(name, " "); len(parts) == 3 {
		id, err1 := strconv.ParseInt(parts[0], 10, 32)
		nonce, err2 := base64.StdEncoding.DecodeString(parts[2])
		if err := errors.Join(err1, err2); err != nil {
			return "", sasl.Identity{}, fmt.Errorf("%w: %q is no name of one", errKey, name)
		}
		key, err := a.EncryptionKey(int32(id), parts[1], nonce)
		if err != nil {
			return "", sasl.Identity{}, fmt.Errorf("%w: %w", errKey, err)
		}
		return sasl.EncodePassword(key), sasl.Identity{Name: name}, nil
	}
	identifier, err := sasl.DecodeName(name)
	if err != nil {
		return "", sasl.Identity{}, err
	}
	password, err := a.Password(identifier)
	if err != nil {
		return "", sasl.Identity{}, fmt.Errorf("%w: %w", errToken, err)
	}
	return sasl.EncodePassword(password), sasl.Identity{Name: name}, nil
}

// Secure makes the handshake with a datanode that was just connected to, and returns the connection on which requests follow. Errors:
// *SecureError when the datanode refuses.
func Secure(conn net.Conn, s *Secret) (net.Conn, error) {
	r := bufio.NewReader(conn)
	i := sasl.NewInitiator(sasl.InitiatorConfig{
		Service: saslService, Server: saslServer, Name: s.Name, Password: s.Password, Qualities: s.Qualities,
	})
	hello, err := AppendMessage(binary.BigEndian.AppendUint32(nil, saslMagic), success([]byte{}))
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	m, err := readAnswer(r)
	if err != nil {
		return nil, err
	}
	response, _, err := i.Step(m.GetPayload())
	if err != nil {
		return nil, err
	}
	request, layer := success(response), i.Layer()
	if layer != nil && sasl.IsPrivate(layer) {
		request.CipherOption = []*hadooppb.CipherOptionProto{{Suite: hadooppb.CipherSuiteProto_AES_CTR_NOPADDING.Enum()}}
	}
	if err := writeMessage(conn, request); err != nil {
		return nil, err
	}
	if m, err = readAnswer(r); err != nil {
		return nil, err
	}
	if _, _, err := i.Step(m.GetPayload()); err != nil {
		return nil, err
	}
	var option *hadooppb.CipherOptionProto
	if len(m.CipherOption) > 0 && len(request.CipherOption) > 0 {
		if option, err = unwrapOption(layer, m.CipherOption[0]); err != nil {
			return nil, err
		}
	}
	if r.Buffered() > 0 {
		return nil, violation("the datanode speaks before it is asked")
	}
	out, _, err := secured(conn, r, layer, option, false)
	return out, err
}

// SecureError is a datanode's refusal in a handshake.
type SecureError struct {
	// UnknownKey: the encryption key has to be got anew; Token: the block token.
	UnknownKey, Token bool
	Message           string
}

func (e *SecureError) Error() string { return "the datanode refuses the handshake: " + e.Message }

func readAnswer(r *bufio.Reader) (*hadooppb.DataTransferEncryptorMessageProto, error) {
	m := new(hadooppb.DataTransferEncryptorMessageProto)
	if err := ReadMessage(r, m); err != nil {
		return nil, inside(err)
	}
	switch m.GetStatus() {
	case hadooppb.DataTransferEncryptorMessageProto_SUCCESS:
		return m, nil
	case hadooppb.DataTransferEncryptorMessageProto_ERROR_UNKNOWN_KEY:
		return nil, &SecureError{UnknownKey: true, Message: m.GetMessage()}
	default:
		return nil, &SecureError{Token: m.GetAccessTokenError(), Message: m.GetMessage()}
	}
}

func success(payload []byte) *hadooppb.DataTransferEncryptorMessageProto {
	return &hadooppb.DataTransferEncryptorMessageProto{Status: hadooppb.DataTransferEncryptorMessageProto_SUCCESS.Enum(), Payload: payload}
}

func writeMessage(w io.Writer, m Message) error {
	b, err := AppendMessage(nil, m)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// newOption draws the keys of both directions.
func newOption() (*hadooppb.CipherOptionProto, error) {
	b := make([]byte, 4*cipherKey)
	rand.Read(b) // never fails (crypto/rand)
	return &hadooppb.CipherOptionProto{
		Suite: hadooppb.CipherSuiteProto_AES_CTR_NOPADDING.Enum(),
		InKey: b[:16:16], InIv: b[16:32:32], OutKey: b[32:48:48], OutIv: b[48:],
	}, nil
}

// wrapOption is an option with its keys wrapped.
func wrapOption(layer sasl.Layer, o *hadooppb.CipherOptionProto) ([]*hadooppb.CipherOptionProto, error) {
	in, err1 := layer.Wrap(o.InKey)
	out, err2 := layer.Wrap(o.OutKey)
	return []*hadooppb.CipherOptionProto{{Suite: o.Suite, InKey: in, InIv: o.InIv, OutKey: out, OutIv: o.OutIv}}, errors.Join(err1, err2)
}

func unwrapOption(layer sasl.Layer, o *hadooppb.CipherOptionProto) (*hadooppb.CipherOptionProto, error) {
	if o.GetSuite() != hadooppb.CipherSuiteProto_AES_CTR_NOPADDING {
		return nil, violation("cipher suite %v was not asked for", o.GetSuite())
	}
	in, err := layer.Unwrap(o.InKey)
	if err != nil {
		return nil, err
	}
	out, err := layer.Unwrap(o.OutKey)
	return &hadooppb.CipherOptionProto{Suite: o.Suite, InKey: in, InIv: o.InIv, OutKey: out, OutIv: o.OutIv}, err
}

// secured is a connection after its handshake, and what it is read through.
func secured(conn net.Conn, r *bufio.Reader, layer sasl.Layer, option *hadooppb.CipherOptionProto, acceptor bool) (net.Conn, *bufio.Reader, error) {
	if layer == nil {
		return conn, r, nil
	}
	if option == nil {
		c := &wrappedConn{Conn: conn, from: r, layer: layer}
		return c, bufio.NewReaderSize(c, r.Size()), nil
	}
	in, err1 := stream(option.InKey, option.InIv)
	out, err2 := stream(option.OutKey, option.OutIv)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	if !acceptor {
		in, out = out, in
	}
	c := &sealedConn{Conn: conn, from: r, in: in, out: out}
	return c, bufio.NewReaderSize(c, r.Size()), nil
}

func stream(key, iv []byte) (cipher.Stream, error) {
	block, err := aes.NewCipher(key)
	if err != nil || len(iv) != aes.BlockSize {
		return nil, violation("a key of %d bytes and an initialization vector of %d", len(key), len(iv))
	}
	return cipher.NewCTR(block, iv), nil
}

// wrappedConn protects what goes over a connection by a layer of SASL: messages with their length in four bytes in front.
type wrappedConn struct {
	net.Conn
	from  *bufio.Reader
	layer sasl.Layer
	rest  []byte // of the message that came last

	mu  sync.Mutex // what is written has to be wrapped and sent in one order
	out []byte
}

func (c *wrappedConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		head, err := c.from.Peek(4)
		if err != nil {
			if len(head) > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		size := int64(binary.BigEndian.Uint32(head))
		if size > maxWrapped {
			return 0, violation("protected message of %d bytes", size)
		}
		_, _ = c.from.Discard(4)
		var b bytes.Buffer // grows with what has come
		if _, err := io.CopyN(&b, c.from, size); err != nil {
			return 0, inside(err)
		}
		if c.rest, err = c.layer.Unwrap(b.Bytes()); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *wrappedConn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(p) {
		part := p[n:min(n+wrapAt, len(p))]
		w, err := c.layer.Wrap(part)
		if err != nil {
			return n, err
		}
		c.out = append(binary.BigEndian.AppendUint32(c.out[:0], uint32(len(w))), w...)
		if _, err := c.Conn.Write(c.out); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// sealedConn encrypts what goes over a connection with AES in counter mode.
type sealedConn struct {
	net.Conn
	from    *bufio.Reader
	in, out cipher.Stream

	mu   sync.Mutex // what is written has to be encrypted and sent in one order
	room []byte
}

func (c *sealedConn) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.in.XORKeyStream(p[:n], p[:n])
	return n, err
}

func (c *sealedConn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.room == nil {
		c.room = make([]byte, wrapAt)
	}
	for n < len(p) {
		part := p[n:min(n+wrapAt, len(p))]
		c.out.XORKeyStream(c.room, part)
		k, err := c.Conn.Write(c.room[:len(part)])
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}
