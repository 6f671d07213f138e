package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohops/hops/datanode"
	datanodepb "github.com/gohops/hops/datanode/api/v1"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
	pb "github.com/gohops/hops/namenode/api/v1"
)

// A namenode reads small replicas, many at a time: each comes with its bytes and how its writer wanted it checked, or with why it does not.
func TestSmallReplicasAreReadByNamenodes(t *testing.T) {
	credentials := securitytest.Credentials(t)
	n := startNamenode(t, credentials, "lab")
	dir := t.TempDir()
	d, _ := startDatanode(t, credentials, dir, n)
	waitReady(t, d)
	var request datanodepb.ReadSmallRequest
	var want []string
	for i := range 5 {
		data := strings.Repeat(fmt.Sprint(i), 1+700*i)
		request.Blocks = append(request.Blocks, wireBlock(put(t, d, int64(i+1), 7, data)))
		want = append(want, data)
	}
	putOpen(t, d, 20, 7, "open")
	for _, b := range []metadata.Block{{ID: 20, Generation: 7, Length: 4}, {ID: 1, Generation: 6, Length: 1}, {ID: 2, Generation: 7, Length: 5}, {ID: 99, Generation: 7, Length: 1}} {
		request.Blocks, want = append(request.Blocks, wireBlock(b)), append(want, "")
	}
	damaged := put(t, d, 30, 7, strings.Repeat("damaged", 100))
	request.Blocks, want = append(request.Blocks, wireBlock(damaged)), append(want, "")
	spoil(t, dir, "damageddamaged")

	conn, err := grpc.NewClient("passthrough:///"+d.cfg.GRPC.Addr().String(), grpc.WithTransportCredentials(credentials.Key(authority.Datanode).Credentials()))
	check(t, err)
	defer conn.Close()
	client := datanodepb.NewContentsClient(conn)
	answer, err := client.ReadSmall(t.Context(), &request)
	check(t, err)
	for i, r := range answer.Replicas {
		if string(r.Data) != want[i] || (r.Error == "") != (want[i] != "") {
			t.Errorf("block %d: %d bytes, want %d: %s", request.Blocks[i].Id, len(r.Data), len(want[i]), r.Error)
		}
		if sum := (datanode.Checksum{Type: datanode.ChecksumType(r.Checksum), BytesPer: r.BytesPerChecksum}); r.Error == "" && sum != datanode.DefaultChecksum {
			t.Errorf("block %d: checked by %v", request.Blocks[i].Id, sum)
		}
	}
	if len(answer.Replicas) != len(want) {
		t.Errorf("%d replicas, want %d", len(answer.Replicas), len(want))
	}
	within(t, "the damaged one is told of", func() bool { return n.heard(d, fmt.Sprintf("CORRUPT %d_7", damaged.ID)) })

	for what, blocks := range map[string][]*pb.Block{
		"too many":  slices.Repeat(request.Blocks[:1], maxSmallBlocks+1),
		"too large": {{Id: 1, Generation: 7, Length: maxSmallBytes}, {Id: 2, Generation: 7, Length: 1}},
		"empty":     {{Id: 1, Generation: 7}},
	} {
		if _, err := client.ReadSmall(t.Context(), &datanodepb.ReadSmallRequest{Blocks: blocks}); metadata.KindOf(pb.FromStatus(err)) != metadata.ErrInvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// No more requests are answered at a time than a disk that hangs may hold up.
func TestReadsOfSmallReplicasAreBounded(t *testing.T) {
	c := &contentsService{places: make(chan struct{}, 1)}
	c.places <- struct{}{}
	if _, err := c.ReadSmall(context.Background(), &datanodepb.ReadSmallRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}

// spoil changes a byte of the only file below dir that has some text.
func spoil(t *testing.T, dir, text string) {
	t.Helper()
	found := false
	check(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		at := strings.Index(string(data), text)
		if err != nil || at < 0 {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		found = true
		_, err = f.WriteAt([]byte{'x'}, int64(at))
		return err
	}))
	if !found {
		t.Fatal("nothing has", text)
	}
}

// A disk that does not answer costs its own replicas, each with an error of its own, and soon; those of the other disk come. Nobody is put there to wait again, and all come when it answers.
func TestSmallReplicasComeBesideAHungDisk(t *testing.T) {
	p := newPair(t, 10*time.Second, nil)
	var request datanodepb.ReadSmallRequest
	for i := range 6 {
		b := p.keep(int64(100+i), []datanode.StorageType{datanode.SSD, datanode.Disk}[i%2], 10_000*(1+i))
		request.Blocks = append(request.Blocks, wireBlock(b))
	}
	conn, err := grpc.NewClient("passthrough:///"+p.cfg.GRPC.Addr().String(), grpc.WithTransportCredentials(p.cfg.Credentials.Key(authority.Datanode).Credentials()))
	check(t, err)
	defer conn.Close()
	client := datanodepb.NewContentsClient(conn)
	read := func() (got []int) {
		t.Helper()
		answer, err := client.ReadSmall(t.Context(), &request)
		check(t, err)
		for i, r := range answer.Replicas {
			switch {
			case r.Error == "" && len(r.Data) == int(request.Blocks[i].Length):
				got = append(got, i)
			case r.Error == "" || !strings.Contains(r.Error, "does not answer"):
				t.Errorf("block %d: %d bytes, %s", i, len(r.Data), r.Error)
			}
		}
		return got
	}
	if got := read(); len(got) != 6 {
		t.Fatalf("%v are read", got)
	}
	p.hang("read")
	for range 2 * maxSmallReads {
		if got := read(); fmt.Sprint(got) != "[0 2 4]" {
			t.Errorf("%v are read", got)
		}
		if n := p.stuck.Load(); n != 1 {
			t.Errorf("%d wait for the disk", n)
		}
	}
	p.free()
	within(t, "all is there", func() bool { return len(read()) == 6 })
}
