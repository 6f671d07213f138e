package dfs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
)

func TestListGoesThroughAllPages(t *testing.T) {
	_, client := newCluster(t, 1)
	var want []string
	for i := range 11 {
		name := fmt.Sprintf("f%02d", i)
		if err := client.WriteFile(t.Context(), "/d/"+name, nil, false); errors.Is(err, fs.ErrNotExist) {
			err = client.Mkdirs(t.Context(), "/d", 0o777, true)
			if err == nil {
				err = client.WriteFile(t.Context(), "/d/"+name, nil, false)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, "/d/"+name)
	}
	list, err := client.List(t.Context(), "/d//")
	if err != nil || len(list) != len(want) {
		t.Fatalf("%d entries, %v", len(list), err)
	}
	for i, status := range list {
		if status.Path != want[i] || "/d/"+status.Name != want[i] {
			t.Errorf("entry %d is %s", i, status.Path)
		}
	}
	one, err := client.List(t.Context(), "/d/f03")
	if err != nil || len(one) != 1 || one[0].Name != "" || one[0].Path != "/d/f03" {
		t.Errorf("list of a file: %+v, %v", one, err)
	}
}

func TestUmaskIsTheClients(t *testing.T) {
	c, _ := newCluster(t, 1)
	for _, test := range []struct {
		umask *metadata.Mode
		want  metadata.Mode
	}{{nil, 0o755}, {new(metadata.Mode(0)), 0o777}, {new(metadata.Mode(0o077)), 0o700}} {
		client := c.client(Config{Umask: test.umask})
		name := fmt.Sprintf("/d%o", test.want)
		if err := client.Mkdirs(t.Context(), name, 0o777, false); err != nil {
			t.Fatal(err)
		}
		if status, err := client.Stat(t.Context(), name); err != nil || status.Mode != test.want || !status.IsDir() {
			t.Errorf("got %v, %v, want %v", status.Mode, err, test.want)
		}
	}
}

func TestErrorsCarryKindClassAndPath(t *testing.T) {
	_, client := newCluster(t, 1)
	if err := client.WriteFile(t.Context(), "/f", nil, false); err != nil {
		t.Fatal(err)
	}
	_, err := client.Create(t.Context(), "/f", CreateOptions{})
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != metadata.ErrExist || e.Path != "/f" || !strings.HasSuffix(e.Class, "FileAlreadyExistsException") || !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %#v", err)
	}
	if _, err := client.Create(t.Context(), "/no/f", CreateOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no parent: %v", err)
	}
	if _, err := client.Create(t.Context(), "/g", CreateOptions{BlockSize: 1000}); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("block size 1000: %v", err)
	}
	if err := client.SetPermission(t.Context(), "/f", 0o600); !errors.Is(err, metadata.ErrUnsupported) {
		t.Errorf("method that the server lacks: %v", err)
	}
	if ok, err := client.Delete(t.Context(), "/nothing", false); ok || err != nil {
		t.Errorf("delete of nothing: %v, %v", ok, err)
	}
}

func TestTableOfClasses(t *testing.T) {
	for class, kind := range kinds {
		if kind == nil || !strings.Contains(class, ".") || strings.HasSuffix(class, ".") {
			t.Errorf("%q: %v", class, kind)
		}
		err := wrap("do", "/x", &hrpc.RemoteError{Class: class, Message: class + ": what happened\n\tat Java"})
		if !errors.Is(err, kind) || err.Error() != "do /x: what happened" {
			t.Errorf("%s: %v", class, err)
		}
		if metadata.KindOf(err) != kind {
			t.Errorf("%s: kind %v, want %v", class, metadata.KindOf(err), kind)
		}
	}
	if err := wrap("do", "", &hrpc.RemoteError{Class: "com.example.Strange", Message: "m"}); !errors.Is(err, metadata.ErrIO) || err.Error() != "do: m" {
		t.Errorf("unknown class: %v", err)
	}
}

func TestStandardFileSystem(t *testing.T) {
	c, _ := newCluster(t, 2)
	client := c.client(Config{BlockSize: 2048})
	for name, size := range map[string]int{"/root/empty": 0, "/root/a/small": 10, "/root/a/b/blocks": 5000, "/root/z": 2048} {
		w, err := client.Create(t.Context(), name, CreateOptions{Parents: true})
		if err != nil {
			t.Fatal(err)
		}
		write(t, w, pattern(size))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := fstest.TestFS(client.FS(t.Context(), "/root"), "empty", "a/small", "a/b/blocks", "z"); err != nil {
		t.Error(err)
	}
}

func TestChecksumIsHadoops(t *testing.T) {
	_, client := newCluster(t, 1)
	for _, test := range []struct {
		data      []byte
		algorithm string
		md5       string
	}{
		{[]byte("bar\n"), "MD5-of-0MD5-of-512CRC32C", "27c076e4987344253650d3335a5d08ce"}, // known to colinmarc/hdfs
		{nil, "MD5-of-0MD5-of-0CRC32", "70bc8f4b72a86921468bf8e8441dce51"},
		{pattern(3 << 20), "MD5-of-2048MD5-of-512CRC32C", ""},
	} {
		if err := client.WriteFile(t.Context(), "/f", test.data, true); err != nil {
			t.Fatal(err)
		}
		sum, err := client.Checksum(t.Context(), "/f")
		if err != nil || sum.Algorithm != test.algorithm || len(sum.Bytes) != 28 || test.md5 != "" && hex.EncodeToString(sum.Bytes[12:]) != test.md5 {
			t.Errorf("%d bytes: %s %x, %v", len(test.data), sum.Algorithm, sum.Bytes, err)
		}
	}
	sum, err := client.ChecksumOf(t.Context(), "/f", CompositeCRC)
	want := fmt.Sprintf("%08x", crc32c(pattern(3<<20)))
	if err != nil || sum.Algorithm != "COMPOSITE-CRC32C" || hex.EncodeToString(sum.Bytes) != want {
		t.Errorf("composite: %s %x, %v, want %s", sum.Algorithm, sum.Bytes, err, want)
	}
}

func TestClientNeedsANamenode(t *testing.T) {
	for _, config := range []Config{{}, {Namenodes: []string{"a:1"}, Replication: -2}, {Namenodes: []string{"a:1"}, BlockSize: -1}} {
		if _, err := New(config); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%+v: %v", config, err)
		}
	}
}
