package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A cluster that is down is not in order, though Hadoop's fsck ends with 0 then; and hdfs:///p is a path of the default filesystem.
func TestFsckOfAClusterThatIsDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	site := fmt.Sprintf("<configuration><property><name>fs.defaultFS</name><value>hdfs://%s</value></property></configuration>", nobody)
	if err := os.WriteFile(filepath.Join(dir, "core-site.xml"), []byte(site), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HADOOP_CONF_DIR", dir)
	for _, target := range []string{"/d", "hdfs:///d", "hdfs://" + nobody + "/d"} {
		var out, errs bytes.Buffer
		code := run([]string{"hops", "fsck", target}, strings.NewReader(""), &out, &errs)
		if text := errs.String(); code != exitUnreachable || !strings.HasPrefix(text, "FileSystem is inaccessible due to:\nstat /d: ") || !strings.HasSuffix(text, "DFSck exiting.\n") {
			t.Errorf("%s: %d\n%s%s", target, code, &out, text)
		}
	}
}
