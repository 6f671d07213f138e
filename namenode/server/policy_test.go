package server

import (
	"testing"

	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Who writes below a directory with a storage policy is sent to volumes of its types.
func TestStoragePolicyPlacesBlocks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.datanode("d1")
	c.datanode("d2")
	lead := c.leader()
	place := func(path string) []hadoop.StorageTypeProto {
		t.Helper()
		b, err := lead.begin(t, path, "writer", 2).addBlock()
		if err != nil {
			t.Fatal(err)
		}
		return b.GetStorageTypes()
	}
	const disk, ssd = hadoop.StorageTypeProto_DISK, hadoop.StorageTypeProto_SSD
	if at := place("/fast/before"); len(at) != 2 || at[0] != disk || at[1] != disk {
		t.Fatalf("without a policy: %v", at)
	}
	dir, policy := "/fast", "ALL_SSD"
	if err := lead.rpc(t).Call(t.Context(), clientprotocol.Name, "setStoragePolicy", &hadoop.SetStoragePolicyRequestProto{Src: &dir, PolicyName: &policy}, new(hadoop.SetStoragePolicyResponseProto)); err != nil {
		t.Fatal(err)
	}
	if at := place("/fast/below/after"); len(at) != 2 || at[0] != ssd || at[1] != ssd {
		t.Fatalf("with ALL_SSD above: %v", at)
	}
	if at := place("/other"); len(at) != 2 || at[0] != disk || at[1] != disk {
		t.Fatalf("elsewhere: %v", at)
	}
}
