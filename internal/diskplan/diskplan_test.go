package diskplan

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

func disk(id string, capacity, used int64) Volume {
	return Volume{Path: "/" + id, UUID: id, Capacity: capacity, Used: used, StorageType: "DISK"}
}

func TestMake(t *testing.T) {
	for name, c := range map[string]struct {
		volumes   []Volume
		threshold float64
		want      string
	}{
		"one":       {[]Volume{disk("a", 100, 90)}, 10, ""},
		"even":      {[]Volume{disk("a", 100, 50), disk("b", 100, 50)}, 1, ""},
		"within":    {[]Volume{disk("a", 100, 55), disk("b", 100, 45)}, 10, ""},
		"new":       {[]Volume{disk("a", 1000, 600), disk("b", 1000, 0)}, 10, "a>b 300"},
		"larger":    {[]Volume{disk("a", 1000, 600), disk("b", 2000, 0)}, 10, "a>b 400"},
		"three":     {[]Volume{disk("a", 1000, 900), disk("b", 1000, 300), disk("c", 1000, 0)}, 5, "a>c 400 a>b 100"},
		"failed":    {[]Volume{disk("a", 1000, 600), {UUID: "b", Capacity: 1000, StorageType: "DISK", Failed: true}}, 10, ""},
		"no room":   {[]Volume{disk("a", 1000, 600), disk("b", 0, 0)}, 10, ""},
		"types":     {[]Volume{disk("a", 1000, 600), {UUID: "b", Capacity: 1000, StorageType: "SSD"}}, 10, ""},
		"transient": {[]Volume{disk("a", 1000, 600), {UUID: "b", Capacity: 1000, StorageType: "DISK", Transient: true}}, 10, ""},
	} {
		var got []string
		for _, s := range Make(c.volumes, c.threshold) {
			got = append(got, s.Source.UUID+">"+s.Destination.UUID, strconv.FormatInt(s.Bytes, 10))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// After the moves of a plan no volume is further off than the threshold, and none was made to hold more than it can.
func TestPlansBalance(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var volumes []Volume
		for i := range 2 + r.IntN(12) {
			capacity := 1<<20 + r.Int64N(1<<42)
			volumes = append(volumes, disk(string(rune('a'+i)), capacity, r.Int64N(capacity)))
		}
		threshold := 1 + 20*r.Float64()
		used := map[string]int64{}
		for _, v := range volumes {
			used[v.UUID] = v.Used
		}
		for _, s := range Make(volumes, threshold) {
			used[s.Source.UUID] -= s.Bytes
			used[s.Destination.UUID] += s.Bytes
		}
		for i := range volumes {
			volumes[i].Used = used[volumes[i].UUID]
			if v := volumes[i]; v.Used < 0 || v.Used > v.Capacity {
				t.Fatalf("%d bytes on a volume of %d", v.Used, v.Capacity)
			}
		}
		weigh(volumes)
		for _, v := range volumes {
			if math.Abs(v.Density) > threshold/100+0.001 {
				t.Fatalf("a volume is %v off after a plan for %v%%: %+v", v.Density, threshold, volumes)
			}
		}
	}
}

func TestParse(t *testing.T) {
	// As Hadoop 3.4 writes it, with what is not read.
	const text = `{"volumeSetPlans":[{"@class":"org.apache.hadoop.hdfs.server.diskbalancer.planner.MoveStep","sourceVolume":{"path":"/d1/","capacity":100,"storageType":"DISK","used":90,"reserved":0,"uuid":"DS-1","failed":false,"volumeDataDensity":-0.4,"skip":false,"transient":false,"readOnly":false},"destinationVolume":{"path":"/d2/","capacity":100,"storageType":"DISK","used":10,"reserved":0,"uuid":"DS-2","failed":false,"volumeDataDensity":0.4,"skip":false,"transient":false,"readOnly":false},"idealStorage":0.5,"bytesToMove":40,"volumeSetID":"x","bandwidth":20}],"nodeName":"dn","nodeUUID":"u","port":9867,"timeStamp":17}`
	p, err := Parse([]byte(text))
	if err != nil || len(p.Steps) != 1 || p.NodeUUID != "u" || p.Port != 9867 || p.Time != 17 {
		t.Fatalf("%+v, %v", p, err)
	}
	if s := p.Steps[0]; s.Source.UUID != "DS-1" || s.Destination.UUID != "DS-2" || s.Bytes != 40 || s.Bandwidth != 20 {
		t.Errorf("%+v", s)
	}
	for _, bad := range []string{"", "[]", `{"volumeSetPlans":[{"bytesToMove":-1}]}`, `{"volumeSetPlans":[{"bandwidth":-5}]}`, `{"volumeSetPlans":[{"tolerancePercent":900}]}`, `{"volumeSetPlans":7}`, strings.Repeat(" ", MaxBytes+1)} {
		if p, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%.60s is %+v", bad, p)
		}
	}
	if id := ID([]byte("abc")); id != "a9993e364706816aba3e25717850c26c9cd0d89d" {
		t.Error(id)
	}
}
