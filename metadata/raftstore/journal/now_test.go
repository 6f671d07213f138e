package journal

import (
	"bytes"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

// What is read without waiting is what was written, or it is not there: it depends on the file system whether that can be said at all.
func TestReadNow(t *testing.T) {
	f, err := FileSystem{}.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := bytes.Repeat([]byte("0123456789abcdef"), 8<<10)
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	now := f.(systemFile)
	look := func(when string) {
		t.Helper()
		b := make([]byte, 9000)
		for at := int64(0); at < int64(len(content)); at += 4500 {
			want := content[at:min(at+9000, int64(len(content)))]
			n, err := now.ReadNow(b, at)
			switch {
			case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EOPNOTSUPP):
				t.Logf("%s: %v", when, err)
				return
			case err != nil:
				t.Fatal(err)
			case !bytes.Equal(b[:n], want[:n]):
				t.Fatalf("%s: other bytes at %d", when, at)
			}
		}
		if n, err := now.ReadNow(b, int64(len(content))+5); n != 0 || err != nil {
			t.Errorf("%s: %d bytes behind the end, %v", when, n, err)
		}
	}
	look("written")
	now.Forget(0, int64(len(content)))
	look("forgotten")
	if _, err := f.ReadAt(make([]byte, len(content)), 0); err != nil {
		t.Fatal(err)
	}
	look("read")
	f.Close()
	if _, err := now.ReadNow(make([]byte, 1), 0); err == nil {
		t.Error("a file that is closed is read")
	}
}
