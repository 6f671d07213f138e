package backup

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func made(t testing.TB, content, passphrase []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := New(&b, passphrase)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(text, passphrase []byte) ([]byte, error) {
	r, err := Open(bytes.NewReader(text), passphrase)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func TestBackupsAreReadAsTheyWereWritten(t *testing.T) {
	for _, size := range []int{0, 1, pieceMax - 1, pieceMax, pieceMax + 1, 3 * pieceMax} {
		content := bytes.Repeat([]byte{'a', 'b', 0}, size/3+1)[:size]
		for _, passphrase := range []string{"", "open sesame"} {
			if passphrase != "" && size != pieceMax+1 { // a key takes its time
				continue
			}
			text := made(t, content, []byte(passphrase))
			if got, err := read(text, []byte(passphrase)); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes, passphrase %q: %d, %v", size, passphrase, len(got), err)
			}
			if passphrase != "" && size > 1 && bytes.Contains(text, content[:size/2+1]) {
				t.Error("it is not encrypted")
			}
		}
	}
}

// Whatever byte of it is missing or changed.
func TestBackupsThatAreRefused(t *testing.T) {
	content := bytes.Repeat([]byte("abc"), pieceMax)
	text := made(t, content, nil)
	for at := 0; at < len(text); at += 4999 {
		if _, err := read(text[:at], nil); !errors.Is(err, ErrCut) {
			t.Fatalf("cut off at %d: %v", at, err)
		}
		changed := bytes.Clone(text)
		changed[at] ^= 4
		if got, err := read(changed, nil); err == nil {
			t.Fatalf("changed at %d: %d bytes", at, len(got))
		}
	}
	if _, err := read(append(bytes.Clone(text), 0), nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("longer: %v", err)
	}
	secret := made(t, content, []byte("one"))
	if _, err := read(secret, []byte("two")); !errors.Is(err, ErrKey) {
		t.Errorf("another passphrase: %v", err)
	}
	if _, err := read(secret, nil); !errors.Is(err, ErrEncrypted) {
		t.Errorf("no passphrase: %v", err)
	}
	if _, err := read(text, []byte("one")); err == nil {
		t.Error("a backup that is not encrypted, where one is expected that is")
	}
}

func FuzzBackup(f *testing.F) {
	f.Add(made(f, []byte("content"), nil))
	f.Add([]byte(magic + "\x00\x00\x00\x02{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := read(text, nil); err == nil && len(got) > len(text) {
			t.Errorf("%d bytes out of %d", len(got), len(text))
		}
	})
}
