package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/namenode"
)

// mixed is a cluster whose nodes have volumes of the types named, as "DISK SSD".
func mixed(volumes ...string) []*Candidate {
	var out []*Candidate
	for i, types := range volumes {
		c := node(i+1, "/a")
		c.Volumes = nil
		for k, t := range strings.Fields(types) {
			full := strings.HasPrefix(t, "full:")
			v := namenode.Volume{ID: namenode.VolumeID(fmt.Sprintf("v%d.%d", i+1, k)), Type: namenode.ParseStorageType(strings.TrimPrefix(t, "full:")), Capacity: 1 << 30, Remaining: 1 << 30}
			if full {
				v.Remaining = 0
			}
			c.Volumes = append(c.Volumes, v)
		}
		out = append(out, c)
	}
	return out
}

func typesOf(ls []namenode.Location) string {
	var out []string
	for _, l := range ls {
		out = append(out, l.Type.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func policy(name string) *namenode.StoragePolicy {
	for i := range namenode.StoragePolicies {
		if namenode.StoragePolicies[i].Name == name {
			return &namenode.StoragePolicies[i]
		}
	}
	panic(name)
}

func storage(names string) (out []namenode.StorageType) {
	for _, n := range strings.Fields(names) {
		out = append(out, namenode.ParseStorageType(n))
	}
	return out
}

// The answers are those of HDFS 3.4's BlockStoragePolicy and BlockPlacementPolicyDefault, but for those said to be ours.
func TestStoragePoliciesDecideOnVolumes(t *testing.T) {
	both := []string{"DISK SSD", "DISK SSD", "DISK SSD", "DISK SSD"}
	for name, c := range map[string]struct {
		nodes        []string
		policy, have string
		copies       bool
		want         int
		types        string
	}{
		"hot":                           {both, "HOT", "", false, 3, "DISK DISK DISK"},
		"all on SSDs":                   {both, "ALL_SSD", "", false, 3, "SSD SSD SSD"},
		"one on an SSD":                 {both, "ONE_SSD", "", false, 3, "DISK DISK SSD"},
		"one SSD in the cluster":        {[]string{"DISK", "DISK", "SSD", "DISK"}, "ONE_SSD", "", false, 3, "DISK DISK SSD"},
		"no SSD":                        {[]string{"DISK", "DISK", "DISK"}, "ONE_SSD", "", false, 3, "DISK DISK DISK"},
		"SSDs full":                     {[]string{"DISK full:SSD", "DISK full:SSD", "DISK SSD"}, "ALL_SSD", "", false, 3, "DISK DISK SSD"},
		"disks full spill nowhere":      {[]string{"full:DISK SSD", "full:DISK SSD", "DISK SSD"}, "HOT", "", false, 3, "DISK"},
		"cold":                          {[]string{"DISK ARCHIVE", "DISK ARCHIVE", "DISK"}, "COLD", "", false, 3, "ARCHIVE ARCHIVE"},
		"warm":                          {[]string{"DISK ARCHIVE", "DISK ARCHIVE", "DISK ARCHIVE"}, "WARM", "", false, 3, "ARCHIVE ARCHIVE DISK"},
		"warm without an archive":       {[]string{"DISK", "DISK", "DISK"}, "WARM", "", false, 3, "DISK DISK DISK"},
		"lazy":                          {[]string{"DISK RAM_DISK", "DISK RAM_DISK"}, "LAZY_PERSIST", "", false, 2, "DISK RAM_DISK"},
		"lazy, one":                     {[]string{"DISK", "DISK RAM_DISK", "DISK"}, "LAZY_PERSIST", "", false, 1, "RAM_DISK"},
		"lazy, no memory":               {[]string{"DISK", "DISK full:RAM_DISK"}, "LAZY_PERSIST", "", false, 2, "DISK DISK"},
		"a copy of what was lazy":       {[]string{"DISK RAM_DISK", "DISK RAM_DISK"}, "LAZY_PERSIST", "", true, 1, "DISK"},
		"provided":                      {[]string{"DISK", "DISK"}, "PROVIDED", "", false, 2, "DISK DISK"},
		"a copy finds the SSD lacking":  {both, "ONE_SSD", "DISK DISK", true, 1, "SSD"},
		"a copy finds the disk lacking": {both, "ONE_SSD", "SSD DISK", true, 1, "DISK"},
		"a copy goes to an archive":     {[]string{"full:DISK ARCHIVE", "full:DISK ARCHIVE"}, "HOT", "DISK DISK", true, 1, "ARCHIVE"},
		"a copy of what fell back":      {both, "ALL_SSD", "DISK SSD", true, 1, "SSD"},
		// Ours: HDFS would make no file at all.
		"SSDs alone":          {[]string{"SSD", "SSD"}, "HOT", "", false, 2, "SSD SSD"},
		"no archive anywhere": {[]string{"DISK", "DISK"}, "COLD", "", false, 2, "DISK DISK"},
		"never in memory":     {[]string{"RAM_DISK", "SSD RAM_DISK"}, "HOT", "", false, 2, "SSD"},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				got := Choose(mixed(c.nodes...), Request{
					Want: c.want, BlockSize: mib, Policy: policy(c.policy), HaveTypes: storage(c.have), Copy: c.copies, Seed: seed,
				})
				if typesOf(got.Targets) != c.types {
					t.Fatalf("seed %d: %q, want %q", seed, typesOf(got.Targets), c.types)
				}
			}
		})
	}
}

func TestNoVolumeOfTheTypeIsSaid(t *testing.T) {
	c := Choose(mixed("DISK", "full:ARCHIVE", "full:ARCHIVE"), Request{Want: 1, BlockSize: mib, Policy: policy("COLD")})
	if err := c.Err("/f"); err == nil || !strings.HasSuffix(err.Error(), "Of the others: 1 without a volume of the type that the storage policy wants, 2 without enough space.") {
		t.Fatal(err)
	}
}

func TestExcess(t *testing.T) {
	for _, c := range []struct{ policy, have, over string }{
		{"ONE_SSD", "SSD DISK DISK", ""},
		{"ONE_SSD", "SSD SSD DISK", "SSD"},
		{"HOT", "DISK SSD DISK DISK", "SSD"},
		{"HOT", "DISK DISK DISK DISK", "DISK"},
		{"COLD", "DISK ARCHIVE ARCHIVE", "DISK"},
		{"LAZY_PERSIST", "DISK DISK DISK", "DISK"},
		{"LAZY_PERSIST", "RAM_DISK DISK DISK", ""},
	} {
		if got := Excess(policy(c.policy), 3, storage(c.have)); !slices.Equal(got, storage(c.over)) {
			t.Errorf("%s with %s: too many %v, want %s", c.policy, c.have, got, c.over)
		}
	}
}

// A target's type is one that the policy names, and types that come first are not left alone while they have room on nodes that nothing else speaks against.
func TestTypesAreRequirements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []string{"DISK", "SSD", "ARCHIVE", "NVDIMM", "RAM_DISK", "full:DISK", "full:SSD", "full:ARCHIVE"}
		var volumes []string
		for range rapid.IntRange(1, 6).Draw(t, "nodes") {
			volumes = append(volumes, strings.Join(rapid.SliceOfN(rapid.SampledFrom(kinds), 1, 3).Draw(t, "volumes"), " "))
		}
		p := &namenode.StoragePolicies[rapid.IntRange(0, len(namenode.StoragePolicies)-1).Draw(t, "policy")]
		r := Request{
			Want: rapid.IntRange(1, 4).Draw(t, "want"), BlockSize: mib, Policy: p, Copy: rapid.Bool().Draw(t, "copy"), Seed: rapid.Uint64().Draw(t, "seed"),
			HaveTypes: rapid.SliceOfN(rapid.SampledFrom(storage("DISK SSD ARCHIVE")), 0, 3).Draw(t, "have"),
		}
		ns := mixed(volumes...)
		named := setOf(p.Types) | setOf(p.CreationFallback)
		if r.Copy {
			named = setOf(p.Types) | setOf(p.ReplicationFallback)
		}
		named &^= 1 << namenode.Provided
		if r.Copy {
			named &^= memory
		}
		some := slices.ContainsFunc(ns, func(c *Candidate) bool { return offers(c, named) })
		got := Choose(ns, r)
		count := map[namenode.StorageType]int{}
		for _, l := range got.Targets {
			count[l.Type]++
			if l.Type == namenode.Provided || l.Type == namenode.RAMDisk && (r.Copy || p.Name != "LAZY_PERSIST") || some && !named.has(l.Type) {
				t.Fatalf("%v for %s on %q", l.Type, p.Name, volumes)
			}
		}
		if len(got.Targets) > r.Want {
			t.Fatalf("%d targets of %d", len(got.Targets), r.Want)
		}
		roomy := 0
		for _, c := range ns {
			if volumeFor(c, mib, named) != nil {
				roomy++
			}
		}
		if short := min(r.Want, roomy) - len(got.Targets); some && len(r.HaveTypes) == 0 && len(p.Types) == 1 && short > 0 && setOf(p.Types) == named {
			t.Fatalf("%d targets, %d nodes have room: %s on %q", len(got.Targets), roomy, p.Name, volumes)
		}
		// Of a type that was fallen back to there is nothing while the first type has room on a node that was not chosen.
		first := p.Types[0]
		if some && len(p.Types) == 1 && named.has(first) && len(r.HaveTypes) == 0 && count[first] < len(got.Targets) {
			for _, c := range ns {
				chosen := slices.ContainsFunc(got.Targets, func(l namenode.Location) bool { return l.Node == c.Node })
				if !chosen && volumeFor(c, mib, 1<<first) != nil {
					t.Fatalf("%v for %s, though %s has %v: %q", got.Targets, p.Name, c.Node.ID, first, volumes)
				}
			}
		}
	})
}

func TestNewRackOrNone(t *testing.T) {
	ns := nodes("/a", "/a", "/b")
	have := []*namenode.Node{ns[0].Node}
	for seed := range uint64(20) {
		if got := ids(Choose(ns, Request{Want: 1, BlockSize: mib, Have: have, NewRack: true, Copy: true, Seed: seed}).Targets); len(got) != 1 || got[0] != "dn3" {
			t.Fatal(got)
		}
	}
	ns[2].Stale = true
	if got := Choose(ns, Request{Want: 1, BlockSize: mib, Have: have, NewRack: true, Copy: true}).Targets; len(got) != 0 {
		t.Fatal(ids(got))
	}
}

// Nothing is moved to memory or out of it because a policy says LAZY_PERSIST: what a datanode has saved lies where it belongs.
func TestLazilyPersistedLiesWhereItBelongs(t *testing.T) {
	for have, want := range map[string]string{"RAM_DISK": "", "DISK": "", "RAM_DISK DISK DISK": "", "DISK DISK DISK": "", "SSD": "SSD for DISK", "RAM_DISK SSD": "SSD for DISK"} {
		types := storage(have)
		over, need := Difference(policy("LAZY_PERSIST"), len(types), types)
		got := ""
		if len(over)+len(need) > 0 {
			got = over[0].String() + " for " + need[0].String()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", have, got, want)
		}
	}
	if over, need := Difference(policy("HOT"), 1, storage("RAM_DISK")); len(over) != 1 || len(need) != 1 {
		t.Errorf("what is in memory and is to lie on a disk: %v for %v", over, need)
	}
}
