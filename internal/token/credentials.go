package token

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/internal/security"
)

// LocationVariable names the file of credentials of a job, for every client of Hadoop's.
const LocationVariable = "HADOOP_TOKEN_FILE_LOCATION"

const (
	magic = "HDTS"
	// The versions of the file: Writables, and a protobuf (HADOOP-12563).
	writables = 0
	protobufs = 1

	// MaxFile is how large a file of credentials is, in bytes; maxTokens how many tokens, and secrets, are in it.
	MaxFile   = 16 << 20
	maxTokens = 10_000
)

// Entry is a token under the name that it has in a file, mostly its service.
type Entry struct {
	Alias string
	Token Token
}

// Credentials are the tokens of a user, or of a job, in their order. Secrets of other kinds, which Hadoop's programs may keep in the
// same file, are passed over.
type Credentials []Entry

// For is the delegation token for one of the services; false: there is none. The first service that there is a token for wins.
func (c Credentials) For(services ...string) (Token, bool) {
	for _, service := range services {
		for _, e := range c {
			if e.Token.Service == service && (e.Token.Kind == Kind || e.Token.Kind == WebKind || e.Token.Kind == SecureWebKind) {
				return e.Token, true
			}
		}
	}
	return Token{}, false
}

// Load reads a file of credentials. Nobody but its owner should be able to read it, which Load leaves to the owner, as Hadoop does.
func Load(path string) (Credentials, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	c, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("credentials %s: %w", path, err)
	}
	return c, nil
}

// FromEnvironment reads the file that LocationVariable names; nil when it names none.
func FromEnvironment() (Credentials, error) {
	path := os.Getenv(LocationVariable)
	if path == "" {
		return nil, nil
	}
	c, err := Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s names %s, which is not there", LocationVariable, path)
	}
	return c, err
}

// Save writes a file of credentials, mode 0600, which it replaces at once.
func (c Credentials) Save(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".credentials-*") // mode 0600
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	_, err = f.Write(c.Encode())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("credentials: %w", err)
	}
	return nil
}

// Encode writes credentials in the version that every Hadoop reads.
func (c Credentials) Encode() []byte {
	b := append([]byte(magic), writables)
	b = security.AppendVLong(b, int64(len(c)))
	for _, e := range c {
		b = append(security.AppendVLong(b, int64(len(e.Alias))), e.Alias...)
		b = e.Token.append(b)
	}
	return append(b, 0) // secrets of other kinds
}

// Parse reads credentials of either version. Errors: ErrForm.
func Parse(b []byte) (Credentials, error) {
	switch {
	case len(b) > MaxFile:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrForm, MaxFile)
	case !bytes.HasPrefix(b, []byte(magic)) || len(b) < len(magic)+1:
		return nil, fmt.Errorf("%w: it does not begin as a file of Hadoop's credentials does (%s)", ErrForm, magic)
	}
	switch version, rest := b[len(magic)], b[len(magic)+1:]; version {
	case writables:
		return parseWritables(rest)
	case protobufs:
		return parseProtobuf(rest)
	default:
		return nil, fmt.Errorf("%w: a file of credentials of version %d, known are 0 and 1", ErrForm, version)
	}
}

func parseWritables(b []byte) (Credentials, error) {
	r := reader{rest: b}
	n := r.vint()
	if n < 0 || n > maxTokens {
		return nil, fmt.Errorf("%w: %d tokens", ErrForm, n)
	}
	var c Credentials
	for range n {
		c = append(c, Entry{string(r.field()), r.token()})
		if r.bad {
			break
		}
	}
	n = r.vint()
	if n < 0 || n > maxTokens {
		return nil, fmt.Errorf("%w: %d secrets", ErrForm, n)
	}
	for range n {
		if r.field(); r.take(r.vlong()) == nil && r.bad {
			break
		}
	}
	if r.bad || len(r.rest) > 0 {
		return nil, fmt.Errorf("%w: the file is cut short or damaged", ErrForm)
	}
	return c, nil
}

// parseProtobuf reads a CredentialsProto with its length in front: 1 tokens, 2 secrets; each of them 1 alias, 2 token, 3 secret.
func parseProtobuf(b []byte) (Credentials, error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size != uint64(len(b)-n) {
		return nil, fmt.Errorf("%w: the file is cut short or damaged", ErrForm)
	}
	var c Credentials
	err := fields(b[n:], func(number protowire.Number, value []byte) error {
		if number != 1 {
			return nil
		}
		if len(c) == maxTokens {
			return fmt.Errorf("%w: more than %d tokens", ErrForm, maxTokens)
		}
		var e Entry
		err := fields(value, func(number protowire.Number, value []byte) error {
			switch number {
			case 1:
				e.Alias = string(value)
			case 2:
				return fields(value, func(number protowire.Number, value []byte) error {
					switch number {
					case 1:
						e.Token.Identifier = bytes.Clone(value)
					case 2:
						e.Token.Password = bytes.Clone(value)
					case 3:
						e.Token.Kind = string(value)
					case 4:
						e.Token.Service = string(value)
					}
					return nil
				})
			}
			return nil
		})
		c = append(c, e)
		return err
	})
	return c, err
}

// fields calls each for the fields of a message that have a length.
func fields(b []byte, each func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: the file is damaged", ErrForm)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return fmt.Errorf("%w: the file is damaged", ErrForm)
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return fmt.Errorf("%w: the file is damaged", ErrForm)
		}
		if err := each(number, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// Prepend puts a token in front of those of encoded credentials, of either version, and leaves everything else as it is: secrets of other
// kinds, too. Empty credentials are none. What Java's writers leave behind the end stays. Errors: ErrForm.
func Prepend(credentials []byte, t Token) ([]byte, error) {
	if len(credentials) == 0 {
		return Credentials{{Token: t}}.Encode(), nil
	}
	if len(credentials) > MaxFile || !bytes.HasPrefix(credentials, []byte(magic)) || len(credentials) < len(magic)+2 {
		return nil, fmt.Errorf("%w: it does not begin as a file of Hadoop's credentials does (%s)", ErrForm, magic)
	}
	head, rest := credentials[:len(magic)+1], credentials[len(magic)+1:]
	out := bytes.Clone(head)
	switch head[len(magic)] {
	case writables:
		r := reader{rest: rest}
		n := r.vint()
		if r.bad || n < 0 || n >= maxTokens {
			return nil, fmt.Errorf("%w: %d tokens", ErrForm, n)
		}
		out = security.AppendVLong(out, int64(n)+1)
		out = append(out, 0) // the alias
		return append(t.append(out), r.rest...), nil
	case protobufs:
		size, n := binary.Uvarint(rest)
		if n <= 0 || size > uint64(len(rest)-n) {
			return nil, fmt.Errorf("%w: the file is cut short or damaged", ErrForm)
		}
		var entry, own []byte
		for i, part := range [][]byte{t.Identifier, t.Password, []byte(t.Kind), []byte(t.Service)} {
			own = protowire.AppendBytes(protowire.AppendTag(own, protowire.Number(i+1), protowire.BytesType), part)
		}
		entry = protowire.AppendString(protowire.AppendTag(entry, 1, protowire.BytesType), "")
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), own)
		field := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
		out = binary.AppendUvarint(out, size+uint64(len(field)))
		return append(append(out, field...), rest[n:]...), nil
	}
	return nil, fmt.Errorf("%w: a file of credentials of version %d, known are 0 and 1", ErrForm, head[len(magic)])
}
