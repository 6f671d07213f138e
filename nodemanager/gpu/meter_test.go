package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gohops/hops/nodemanager"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func second(n int) time.Time { return noon.Add(time.Duration(n) * time.Second) }

// device says what a device does, in percent, MiB and joules since the driver was loaded.
func deviceThat(uuid string, busy float64, memory int64, joules float64) nodemanager.GPU {
	return nodemanager.GPU{UUID: uuid, Usage: &nodemanager.GPUUsage{Utilization: busy, MemoryUsed: memory << 20, Energy: joules, Power: 100}}
}

func TestMeter(t *testing.T) {
	var m Meter
	look := func(at int, d nodemanager.GPU) { m.Look([]nodemanager.GPU{d}, second(at)) }
	check := func(what string, c nodemanager.ContainerID, want nodemanager.GPUUse) {
		t.Helper()
		got := m.Of(c)
		want.UUID = "g"
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	look(0, deviceThat("g", 90, 500, 1000))
	m.Begin("a", []string{"g"}, nil, second(2))
	look(10, deviceThat("g", 50, 300, 2000))
	// 8 of the 10 seconds, and 800 of the 1000 joules, are a's; of memory only what is used now can be its.
	check("first stretch", "a", nodemanager.GPUUse{Held: 8 * time.Second, Busy: 4 * time.Second, MemoryPeak: 300 << 20, Energy: 800})
	look(20, deviceThat("g", 1, 100, 2100))
	look(30, deviceThat("g", 0, 400, 2200))
	check("idle", "a", nodemanager.GPUUse{Held: 28 * time.Second, Busy: 4100 * time.Millisecond, MemoryPeak: 400 << 20, Energy: 1000, Idle: 20 * time.Second})
	// The driver is loaded anew, so its counter is below: 10 s at 100 W.
	look(40, deviceThat("g", 100, 0, 50))
	check("a new counter", "a", nodemanager.GPUUse{Held: 38 * time.Second, Busy: 14100 * time.Millisecond, MemoryPeak: 400 << 20, Energy: 2000})
	m.End("a", second(44))
	m.Begin("b", []string{"g"}, []nodemanager.GPUUse{{UUID: "g", Held: time.Hour, Energy: 7}, {UUID: "other", Energy: 9}}, second(46))
	look(50, deviceThat("g", 0, 900, 150))
	check("the rest", "a", nodemanager.GPUUse{Held: 42 * time.Second, Busy: 14100 * time.Millisecond, MemoryPeak: 400 << 20, Energy: 2040, Idle: 4 * time.Second})
	check("goes on", "b", nodemanager.GPUUse{Held: time.Hour + 4*time.Second, MemoryPeak: 900 << 20, Energy: 47, Idle: 4 * time.Second})
	look(45, deviceThat("g", 100, 900, 160)) // a clock that went back
	look(55, nodemanager.GPU{UUID: "g"})     // a device that says nothing
	look(60, deviceThat("g", 100, 900, 170))
	check("nothing added", "b", nodemanager.GPUUse{Held: time.Hour + 4*time.Second, MemoryPeak: 900 << 20, Energy: 47, Idle: 4 * time.Second})
	blind := deviceThat("g", 0, 900, 180)
	blind.Usage.Blind = true
	look(70, blind)
	check("a device that does not say how busy it is", "b", nodemanager.GPUUse{Held: time.Hour + 14*time.Second, MemoryPeak: 900 << 20, Energy: 57})
	m.Begin("b", []string{"g"}, nil, second(71)) // again
	m.Begin("c", nil, nil, second(71))
	look(80, deviceThat("g", 0, 900, 180))
	if m.Forget("a"); m.Of("a") != nil || m.Of("c") != nil || len(m.held) != 1 {
		t.Errorf("left: %v %v %v", m.Of("a"), m.Of("c"), m.held)
	}
}

// TestEveryJouleIsSomebodys gives devices to containers one after the other at random times: together they have what the devices spent.
func TestEveryJouleIsSomebodys(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 7))
		var m Meter
		counter := map[string]float64{"g": 5, "h": 9}
		look := func(at time.Time) {
			m.Look([]nodemanager.GPU{deviceThat("g", 50, 1, counter["g"]), deviceThat("h", 50, 1, counter["h"])}, at)
		}
		m.Begin("c0", []string{"g", "h"}, nil, noon)
		look(noon)
		start, n := counter["g"]+counter["h"], 0
		at := noon
		for range 200 {
			at = at.Add(time.Duration(1+random.IntN(3000)) * time.Millisecond)
			if random.IntN(2) == 0 {
				m.End(nodemanager.ContainerID(fmt.Sprintf("c%d", n)), at)
				n++
				m.Begin(nodemanager.ContainerID(fmt.Sprintf("c%d", n)), []string{"g", "h"}, nil, at)
				continue
			}
			counter["g"] += random.Float64() * 100
			counter["h"] += random.Float64() * 100
			look(at)
		}
		look(at.Add(time.Second))
		sum, held := 0.0, time.Duration(0)
		for i := range n + 1 {
			for _, u := range m.Of(nodemanager.ContainerID(fmt.Sprintf("c%d", i))) {
				sum += u.Energy
				held += u.Held
			}
		}
		if want := counter["g"] + counter["h"] - start; math.Abs(sum-want) > 1e-6*want {
			t.Fatalf("seed %d: %v joules are somebody's, %v were spent", seed, sum, want)
		}
		if want := 2 * at.Add(time.Second).Sub(noon); held != want {
			t.Fatalf("seed %d: held for %v of %v", seed, held, want)
		}
	}
}
