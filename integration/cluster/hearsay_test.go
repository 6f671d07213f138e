package cluster

import (
	"bytes"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const clientProtocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// blockFile is the data file of the only block in files of a datanode, empty while there is none.
func (k *Cluster) blockFile(name string) (found string) {
	_ = filepath.WalkDir(filepath.Join(k.Dir, name, "blocks"), func(path string, d fs.DirEntry, err error) error {
		base := filepath.Base(path)
		if err == nil && !d.IsDir() && strings.HasPrefix(base, "blk_") && !strings.ContainsAny(base[4:], "._") {
			found = path
		}
		return nil
	})
	return found
}

// intact reports whether a datanode's only block file holds exactly want.
func (k *Cluster) intact(name string, want []byte) bool {
	got, err := os.ReadFile(k.blockFile(name))
	return err == nil && bytes.Equal(got, want)
}

func (k *Cluster) flip(name string, off int64) {
	k.t.Helper()
	f, err := os.OpenFile(k.blockFile(name), os.O_RDWR, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		k.t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{^b[0]}, off); err != nil {
		k.t.Fatal(err)
	}
}

func (k *Cluster) until(what string, ok func() bool) {
	k.t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			k.t.Fatalf("never: %s", what)
		}
	}
}

// ipcOf is a connection to the first namenode in a user's name.
func (k *Cluster) ipcOf(user string) *hrpc.Client {
	k.t.Helper()
	c, err := hrpc.Dial(k.t.Context(), k.shared.Namenodes[0].IPC, hrpc.DialConfig{Protocol: clientProtocol, User: user})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { c.Close() })
	return c
}

// reportBad tells the namenode, in a user's name, that the replicas of a file's first block on these datanodes are bad.
func (k *Cluster) reportBad(reader *dfs.Client, user, path string, datanodes ...string) error {
	k.t.Helper()
	var located hadooppb.GetBlockLocationsResponseProto
	err := k.ipcOf(reader.User()).Call(k.t.Context(), clientProtocol, "getBlockLocations",
		&hadooppb.GetBlockLocationsRequestProto{Src: &path, Offset: new(uint64(0)), Length: new(uint64(1))}, &located)
	if err != nil {
		k.t.Fatal(err)
	}
	b := located.GetLocations().GetBlocks()[0]
	bad := &hadooppb.LocatedBlockProto{
		B: b.GetB(), Offset: new(uint64(0)), Corrupt: new(true),
		BlockToken: &hadooppb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: new(string), Service: new(string)},
	}
	for _, l := range b.GetLocs() {
		for _, name := range datanodes {
			if k.own[name].Datanode.Transfer == net.JoinHostPort(l.GetId().GetIpAddr(), strconv.Itoa(int(l.GetId().GetXferPort()))) {
				bad.Locs = append(bad.Locs, l)
			}
		}
	}
	return k.ipcOf(user).Call(k.t.Context(), clientProtocol, "reportBadBlocks",
		&hadooppb.ReportBadBlocksRequestProto{Blocks: []*hadooppb.LocatedBlockProto{bad}}, new(hadooppb.ReportBadBlocksResponseProto))
}

// known waits until the namenode knows of so many replicas of a file's first block: datanodes tell it a little after the file is complete.
func (k *Cluster) known(c *dfs.Client, path string, n int) {
	k.until("the namenode knows all replicas", func() bool {
		loc, err := c.BlockLocations(k.t.Context(), path, 0, 1)
		return err == nil && len(loc) == 1 && len(loc[0].Datanodes) == n
	})
}

// What a reader says of replicas is looked into by their datanodes. Nothing is deleted because of it; a replica that
// really is damaged is found on the way and repaired, though no other datanode has room for a copy.
func TestAReadersWordDeletesNoGoodReplica(t *testing.T) {
	k := Start(t, Config{Datanodes: 3})
	c := k.Client("").FS()
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	if err := c.WriteFile(t.Context(), "/f", want, true); err != nil {
		t.Fatal(err)
	}
	if err := c.SetPermission(t.Context(), "/f", 0o600); err != nil {
		t.Fatal(err)
	}
	k.until("three replicas", func() bool { return k.intact("dn1", want) && k.intact("dn2", want) && k.intact("dn3", want) })
	k.known(c, "/f", 3)
	k.flip("dn3", 5000)

	if err := k.reportBad(c, "mallory", "/f", "dn1", "dn2"); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("mallory, who may not read the file, says that two replicas are bad: err=%v", err)
	}
	if err := k.reportBad(c, c.User(), "/f", "dn1", "dn2"); err != nil {
		t.Fatal(err)
	}
	k.until("the damaged replica is repaired", func() bool {
		for _, name := range []string{"dn1", "dn2"} {
			if !k.intact(name, want) {
				t.Fatalf("the good replica of %s is gone", name)
			}
		}
		return k.intact("dn3", want)
	})
	if got, err := c.ReadFile(t.Context(), "/f"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read: %d bytes, %v", len(got), err)
	}
}

// A good file all of whose replicas somebody suspects stays what it is.
func TestSuspicionEndsWhenTheDatanodesHaveVerified(t *testing.T) {
	k := Start(t, Config{Datanodes: 2})
	c := k.Client("").FS()
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	if err := c.WriteFile(t.Context(), "/f", want, true); err != nil {
		t.Fatal(err)
	}
	k.until("two replicas", func() bool { return k.intact("dn1", want) && k.intact("dn2", want) })
	k.known(c, "/f", 2)
	if err := k.reportBad(c, c.User(), "/f", "dn1", "dn2"); err != nil {
		t.Fatal(err)
	}
	loc, err := c.BlockLocations(t.Context(), "/f", 0, 1)
	if err != nil || len(loc) != 1 || len(loc[0].Datanodes) != 2 || loc[0].Corrupt {
		t.Errorf("after the report: %+v, %v", loc, err)
	}
}
