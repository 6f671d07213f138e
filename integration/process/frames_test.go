package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/cmd/processes"
)

// memory is how much of a server is in memory, in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// Garbage at every door of every server: the connection ends, the memory stays, the others are served.
func TestMalformedFramesEndTheirConnectionAndNothingElse(t *testing.T) {
	k := Start(t, processes.Config{Namenodes: 1, Datanodes: 1, NodeManagers: 1, Properties: map[string]string{"dfs.replication": "1"}})
	fs := Dial(t, k.Conf(), "").FS()
	if err := fs.WriteFile(Context(t), "/tmp/kept", []byte("kept"), false); err != nil {
		t.Fatal(err)
	}
	datanodes := datanodeAddresses(t, k)
	nn, rm := k.File().Namenodes[0], k.File().ResourceManagers[0]

	hello := []byte("hrpc\x09\x00\x00") // Hadoop IPC 9, default service class, no SASL
	random := make([]byte, 64<<10)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	transfer := func(body ...[]byte) []byte { // DataTransferProtocol 28, WRITE_BLOCK
		return bytes.Join(append([][]byte{{0, 28, 80}}, body...), nil)
	}
	frames := []struct {
		name string
		text []byte
	}{
		{"no magic", []byte("GET / HTTP/1.0\r\n\r\n")},
		{"another magic", []byte("hdfs\x09\x00\x00")},
		{"another version", []byte("hrpc\x04\x00\x00")},
		{"a frame of 2^31-1 bytes", append(bytes.Clone(hello), be32(1<<31-1)...)},
		{"a frame of -1 bytes", append(bytes.Clone(hello), be32(1<<32-1)...)},
		{"an empty frame", append(bytes.Clone(hello), be32(0)...)},
		{"a frame of zeros", append(append(bytes.Clone(hello), be32(4096)...), make([]byte, 4096)...)},
		{"a truncated frame", append(append(bytes.Clone(hello), be32(4096)...), "half"...)},
		{"a header longer than its frame", append(append(bytes.Clone(hello), be32(4)...), 0xff, 0xff, 0xff, 0x7f)},
		{"a ClientHello of TLS", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + string(random[:500]))},
		{"random bytes", random},
		{"an operation of 2^31-1 bytes", transfer([]byte{0xff, 0xff, 0xff, 0xff, 0x07})},
		{"an operation of zeros", transfer([]byte{64}, make([]byte, 64))},
		{"a truncated operation", transfer([]byte{64}, []byte("half"))},
	}
	doors := map[string][]string{
		"nn1": {nn.IPC, nn.HTTP, nn.GRPC, nn.Raft},
		"dn1": datanodes,
		"rm1": {rm.HTTP, rm.GRPC, rm.Raft},
	}
	for name, addresses := range doors {
		pid := k.Pid(name)
		before := memory(t, pid)
		for _, address := range addresses {
			for _, f := range frames {
				for range 5 {
					knock(t, f.name, address, f.text)
				}
			}
		}
		// The runtime takes memory for as many connections; a frame that is believed would take gigabytes.
		if grown := memory(t, pid) - before; grown > 64<<20 {
			t.Errorf("%s has grown by %d MiB", name, grown>>20)
		}
	}
	if err := k.Died(); err != nil {
		t.Fatal(err)
	}
	if got, err := fs.ReadFile(Context(t), "/tmp/kept"); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
	for _, name := range k.Names() {
		if text := processes.Tail(k.Log(name), 1<<20); strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
			t.Errorf("%s has panicked:\n%s", name, text)
		}
	}
}

// knock sends bytes and the end of its side of the connection, and waits until the server ends the other.
func knock(t *testing.T, what, address string, text []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(Patience))
	if _, err = conn.Write(text); err == nil { // the server may have hung up already
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	n, err := io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s at %s: the connection is not ended", what, address)
	}
	if n > 64<<10 {
		t.Errorf("%s at %s is answered with %d bytes", what, address, n)
	}
}

// A client that sends a length that nobody can mean is hung up on at once, whether it goes on or not.
func TestAFrameOfTwoGigabytesIsNotWaitedFor(t *testing.T) {
	dev := StartDev(t, Dir(t))
	conn, err := net.Dial("tcp", strings.TrimPrefix(dev.FS, "hdfs://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(append([]byte("hrpc\x09\x00\x00"), be32(1<<31-1)...)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(Patience))
	started := time.Now()
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the server waits for two gigabytes")
	}
	t.Logf("hung up on after %v", time.Since(started))
	dev.Hops().OK("fs", "-ls", "/")
}

// datanodeAddresses are the doors of the cluster's datanode.
func datanodeAddresses(t *testing.T, k *Cluster) []string {
	t.Helper()
	f, err := k.Server("dn1")
	if err != nil {
		t.Fatal(err)
	}
	return []string{f.Datanode.Transfer, f.Datanode.HTTP, f.Datanode.IPC, f.Datanode.GRPC}
}
