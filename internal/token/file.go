package token

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gohops/hops/internal/security"
)

// File is a whole file of credentials: tokens, and secrets of other kinds, such as the key with which the tasks of a MapReduce job
// fetch each other's output.
type File struct {
	Tokens  Credentials
	Secrets []Secret
}

// Secret is bytes under a name.
type Secret struct {
	Alias  string
	Secret []byte
}

// ParseFile reads credentials of either version, as Hadoop does it for the launch of a container: whatever follows them is padding,
// which Hadoop's buffers leave there. Errors: ErrForm.
func ParseFile(b []byte) (File, error) {
	var f File
	if len(b) > MaxFile {
		return f, fmt.Errorf("%w: more than %d bytes", ErrForm, MaxFile)
	}
	if !bytes.HasPrefix(b, []byte(magic)) || len(b) < len(magic)+1 {
		return f, fmt.Errorf("%w: it does not begin as a file of Hadoop's credentials does (%s)", ErrForm, magic)
	}
	version, rest := b[len(magic)], b[len(magic)+1:]
	switch version {
	case writables:
		return parseFile(rest)
	case protobufs:
		size, length := binary.Uvarint(rest)
		if length <= 0 || size > uint64(len(rest)-length) {
			return f, fmt.Errorf("%w: the file is cut short or damaged", ErrForm)
		}
		rest = rest[:length+int(size)]
		tokens, err := parseProtobuf(rest)
		if err != nil {
			return f, err
		}
		f.Tokens = tokens
		err = fields(rest[length:], func(number protowire.Number, value []byte) error {
			if number != 2 {
				return nil
			}
			var s Secret
			if len(f.Secrets) == maxTokens {
				return fmt.Errorf("%w: more than %d secrets", ErrForm, maxTokens)
			}
			err := fields(value, func(number protowire.Number, value []byte) error {
				switch number {
				case 1:
					s.Alias = string(value)
				case 3:
					s.Secret = bytes.Clone(value)
				}
				return nil
			})
			f.Secrets = append(f.Secrets, s)
			return err
		})
		return f, err
	}
	return f, fmt.Errorf("%w: a file of credentials of version %d, known are 0 and 1", ErrForm, version)
}

func parseFile(b []byte) (File, error) {
	var f File
	r := reader{rest: b}
	n := r.vint()
	if n < 0 || n > maxTokens {
		return f, fmt.Errorf("%w: %d tokens", ErrForm, n)
	}
	for range n {
		f.Tokens = append(f.Tokens, Entry{string(r.field()), r.token()})
		if r.bad {
			break
		}
	}
	if n = r.vint(); n < 0 || n > maxTokens {
		return f, fmt.Errorf("%w: %d secrets", ErrForm, n)
	}
	for range n {
		f.Secrets = append(f.Secrets, Secret{string(r.field()), bytes.Clone(r.take(r.vlong()))})
		if r.bad {
			break
		}
	}
	if r.bad {
		return File{}, fmt.Errorf("%w: the file is cut short or damaged", ErrForm)
	}
	return f, nil
}

// Add puts tokens in place of those of the same alias, or behind the others.
func (f *File) Add(tokens Credentials) {
	for _, e := range tokens {
		f.Tokens = slices.DeleteFunc(f.Tokens, func(had Entry) bool { return had.Alias == e.Alias && e.Alias != "" })
		f.Tokens = append(f.Tokens, e)
	}
}

// Encode writes credentials in the version that every Hadoop reads.
func (f File) Encode() []byte {
	b := f.Tokens.Encode()
	b = security.AppendVLong(b[:len(b)-1], int64(len(f.Secrets))) // Tokens has none
	for _, s := range f.Secrets {
		b = append(security.AppendVLong(b, int64(len(s.Alias))), s.Alias...)
		b = append(security.AppendVLong(b, int64(len(s.Secret))), s.Secret...)
	}
	return b
}
