package process

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gohops/hops/cmd/processes"
)

// What can be read of a file whose blocks are half lost is in /lost+found afterwards, a file for each run of blocks without a gap.
func TestFsckMovesWhatCanBeRead(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	const blockSize, blocks = 1 << 20, 8
	k := Start(t, processes.Config{Namenodes: 1, Datanodes: 2, Properties: map[string]string{"dfs.replication": "1", "dfs.blocksize": fmt.Sprint(blockSize)}})
	fs, h := Dial(t, k.Conf(), "").FS(), k.Hops()
	f, err := k.Server("dn1")
	k.must(err)
	dying := f.Datanode.Transfer
	mkdir(t, fs, "/d")
	var chains [][]byte
	for try := 0; len(chains) == 0; try++ { // until both datanodes have some of it
		name := "/d/half"
		data := make([]byte, 0, blocks*blockSize)
		for i := range blocks {
			data = append(data, bytes.Repeat([]byte{byte('a' + try), byte('A' + i)}, blockSize/2)...)
		}
		k.must(fs.WriteFile(Context(t), name, data, true))
		all, err := fs.BlockLocations(Context(t), name, 0, int64(len(data)))
		k.must(err)
		var found [][]byte
		lost, run := 0, false
		for _, b := range all {
			if n := b.Datanodes[0]; fmt.Sprintf("%s:%d", n.IP, n.TransferPort) == dying {
				lost, run = lost+1, false
				continue
			}
			if !run {
				found, run = append(found, nil), true
			}
			found[len(found)-1] = append(found[len(found)-1], data[b.Offset:b.Offset+b.Length]...)
		}
		if lost > 0 {
			chains = found
		}
	}
	k.must(fs.WriteFile(Context(t), "/d/empty", nil, true))
	k.must(k.Kill("dn1"))
	k.Await("the loss", func() error {
		if r := h.Run("fsck", "/d"); r.Status != 1 {
			return errors.New(r.Stdout)
		}
		return nil
	})
	check := func() {
		t.Helper()
		list, err := fs.List(Context(t), "/lost+found/d/half")
		if err != nil || len(list) != len(chains) {
			t.Fatalf("%d files, want %d; %v", len(list), len(chains), err)
		}
		for i, want := range chains {
			if got, err := fs.ReadFile(Context(t), fmt.Sprintf("/lost+found/d/half/%d", i)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("chain %d has %d bytes, want %d; %v", i, len(got), len(want), err)
			}
		}
	}
	h.Fails(1, nil, "fsck", "/d", "-move")
	check()
	if _, err := fs.Stat(Context(t), "/d/half"); err != nil {
		t.Errorf("the file itself: %v", err)
	}
	if r := h.Run("fsck", "/d", "-move", "-delete"); r.Status != 1 || !strings.Contains(r.Stdout, "/d/half: not moved: /lost+found/d/half already exists") {
		t.Errorf("%d %s", r.Status, r.Stdout)
	}
	h.OK("fs", "-rm", "-r", "-skipTrash", "/lost+found/d")
	h.Fails(1, nil, "fsck", "/d", "-move", "-delete")
	check()
	if text := h.OK("fsck", "/"); !strings.Contains(text, "is HEALTHY") {
		t.Error(text)
	}
	if list, err := fs.List(Context(t), "/d"); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}
