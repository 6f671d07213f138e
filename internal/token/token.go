// Package token is Hadoop's tokens as bytes: a Token, the identifier of a delegation token, and the file of credentials in which a
// job finds its tokens (HADOOP_TOKEN_FILE_LOCATION). It checks form and nothing else: whether a token is good, its issuer says.
package token

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // what Hadoop's tokens have
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gohops/hops/internal/security"
)

// The kinds of tokens of HDFS: Kind of those that a namenode gives over Hadoop IPC, WebKind and SecureWebKind of those that it gives
// over WebHDFS. They are good at either port.
const (
	Kind          = "HDFS_DELEGATION_TOKEN"
	WebKind       = "WEBHDFS delegation"
	SecureWebKind = "SWEBHDFS delegation"
)

// Limits.
const (
	// maxField is how long any part of a token is, in bytes.
	maxField = 16 << 10
	// MaxText is how long a token is as text.
	MaxText = 64 << 10
)

// ErrForm: bytes are no token, no identifier, or no credentials.
var ErrForm = errors.New("malformed token")

// Token is what a bearer shows. Its Password is secret, and never shown by String.
type Token struct {
	Identifier, Password []byte
	// Kind says what it is for, Service which server, as Hadoop's clients have it: ip:port, or ha-hdfs:name.
	Kind, Service string
}

// String names a token without its password, as Hadoop does.
func (t Token) String() string {
	if id, err := ParseIdentifier(t.Identifier); err == nil && (t.Kind == Kind || t.Kind == WebKind || t.Kind == SecureWebKind) {
		return fmt.Sprintf("Kind: %s, Service: %s, Ident: (%v)", t.Kind, t.Service, id)
	}
	return fmt.Sprintf("Kind: %s, Service: %s", t.Kind, t.Service)
}

// GoString is String.
func (t Token) GoString() string { return t.String() }

// append writes a token as Hadoop's Writable.
func (t Token) append(b []byte) []byte {
	for _, part := range [][]byte{t.Identifier, t.Password, []byte(t.Kind), []byte(t.Service)} {
		b = append(security.AppendVLong(b, int64(len(part))), part...)
	}
	return b
}

// Text is a token as a parameter of WebHDFS and in messages between Hadoop's programs: the Writable in base64 for URLs.
func (t Token) Text() string { return base64.RawURLEncoding.EncodeToString(t.append(nil)) }

// ParseText reads what Text writes. Errors: ErrForm.
func ParseText(s string) (Token, error) {
	if len(s) > MaxText {
		return Token{}, fmt.Errorf("%w: %d characters, %d are allowed", ErrForm, len(s), MaxText)
	}
	for len(s) > 0 && s[len(s)-1] == '=' {
		s = s[:len(s)-1]
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		b, err = base64.RawStdEncoding.DecodeString(s)
	}
	if err != nil {
		return Token{}, fmt.Errorf("%w: it is not base64", ErrForm)
	}
	r := reader{rest: b}
	t := r.token()
	if r.bad || len(r.rest) > 0 {
		return Token{}, fmt.Errorf("%w: it is none of Hadoop's", ErrForm)
	}
	return t, nil
}

// ParseWritable reads a token as a Writable, as services of node managers get them (ShuffleHandler.deserializeServiceData). What is
// behind it is passed over. Errors: ErrForm.
func ParseWritable(b []byte) (Token, error) {
	r := reader{rest: b}
	t := r.token()
	if r.bad {
		return Token{}, fmt.Errorf("%w: it is none of Hadoop's", ErrForm)
	}
	return t, nil
}

// Writable is what ParseWritable reads.
func (t Token) Writable() []byte { return t.append(nil) }

// Identifier is what the identifier of a delegation token says (AbstractDelegationTokenIdentifier). Times are milliseconds since
// 1970.
type Identifier struct {
	Owner, Renewer, RealUser string
	Issued, MaxDate          int64
	Sequence, Key            int32
}

// String is what HDFS says of it.
func (id Identifier) String() string {
	return fmt.Sprintf("token for %s: %s owner=%s, renewer=%s, realUser=%s, issueDate=%d, maxDate=%d, sequenceNumber=%d, masterKeyId=%d",
		id.Owner, Kind, id.Owner, id.Renewer, id.RealUser, id.Issued, id.MaxDate, id.Sequence, id.Key)
}

// Encode writes an identifier as Hadoop does: a version of 0, three texts, and vints.
func (id Identifier) Encode() []byte {
	b := []byte{0}
	for _, part := range []string{id.Owner, id.Renewer, id.RealUser} {
		b = append(security.AppendVLong(b, int64(len(part))), part...)
	}
	for _, n := range []int64{id.Issued, id.MaxDate, int64(id.Sequence), int64(id.Key)} {
		b = security.AppendVLong(b, n)
	}
	return b
}

// ParseIdentifier reads what Encode writes. Errors: ErrForm.
func ParseIdentifier(b []byte) (Identifier, error) {
	r := reader{rest: b}
	version := r.take(1)
	id := Identifier{
		Owner: string(r.field()), Renewer: string(r.field()), RealUser: string(r.field()),
		Issued: r.vlong(), MaxDate: r.vlong(), Sequence: r.vint(), Key: r.vint(),
	}
	if r.bad || len(r.rest) > 0 || version[0] != 0 {
		return Identifier{}, fmt.Errorf("%w: it is not the identifier of a delegation token", ErrForm)
	}
	return id, nil
}

// Password is that of a token with an identifier, signed with a key: HMAC-SHA1, as Hadoop has it.
func Password(key, identifier []byte) []byte {
	h := hmac.New(sha1.New, key)
	h.Write(identifier)
	return h.Sum(nil)
}

// reader reads Writables; after the first mistake it is bad and gives zeros.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) take(n int64) []byte {
	if r.bad || n < 0 || n > int64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) vlong() int64 {
	b := r.take(1)
	if b == nil {
		return 0
	}
	head := int8(b[0])
	if head >= -112 {
		return int64(head)
	}
	n, negative := -112-int64(head), false
	if head < -120 {
		n, negative = -120-int64(head), true
	}
	var room [8]byte
	copy(room[8-n:], r.take(n))
	v := int64(binary.BigEndian.Uint64(room[:]))
	if negative {
		v = ^v
	}
	return v
}

func (r *reader) vint() int32 {
	v := r.vlong()
	if v != int64(int32(v)) {
		r.bad, r.rest = true, nil
		return 0
	}
	return int32(v)
}

func (r *reader) field() []byte {
	n := r.vlong()
	if n > maxField {
		r.bad, r.rest = true, nil
	}
	return r.take(n)
}

func (r *reader) token() Token {
	return Token{
		Identifier: bytes.Clone(r.field()), Password: bytes.Clone(r.field()), Kind: string(r.field()), Service: string(r.field()),
	}
}
