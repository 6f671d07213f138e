package namespace

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/gohops/hops/metadata/kv/mem"
)

func TestFit(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ most, limit, live, resident, want int64 }{
		{512, 2000, 0, 0, 512},
		{512, 2000, 1000, 500, 512},     // 500 of others
		{512, 2000, 1200, 200, 200},     // 1000 of others
		{512, 2000, 1600, 512, 112},     // nothing more than others leave
		{512, 2000, 4000, 512, 64},      // but the least
		{32, 2000, 4000, 512, 32},       // which is never more than was given
		{512, 1 << 40, 100000, 0, 512},  // no limit
		{512, 2000, 100, 500, 512},      // the estimate is over what there is
		{512, 2000, 1200, 512, 512},     // exactly
		{4096, 2000, 1200, 1000, 1000},  // more than ever fits
		{4096, 2000, 1400, 1200, 1000},  // ... is let go
		{4096, 10000, 3000, 2000, 4096}, // and comes back under a higher limit
	} {
		if got := fit(c.most*mib, c.limit*mib, c.live*mib, c.resident*mib); got != c.want*mib {
			t.Errorf("fit(%d, %d, %d, %d) = %d, not %d", c.most, c.limit, c.live, c.resident, got/mib, c.want)
		}
	}
}

// The budget follows the runtime's limit, after each collection, and comes back.
func TestFitMemory(t *testing.T) {
	const budget = 1 << 40
	ns, err := Open(Config{Store: mem.New(), Owner: "hops", Supergroup: "supergroup", Memory: budget})
	if err != nil {
		t.Fatal(err)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 30))
	runtime.GC()
	ns.FitMemory()
	if got := ns.Counts().MemoryBytes; got > 1<<30/5*3 || got < leastMemory {
		t.Errorf("a budget of %d bytes under a limit of 1 GiB", got)
	}
	debug.SetMemoryLimit(budget * 4)
	runtime.GC()
	ns.FitMemory()
	if got := ns.Counts().MemoryBytes; got != budget {
		t.Errorf("a budget of %d bytes of %d under a limit of four times as much", got, int64(budget))
	}
}
