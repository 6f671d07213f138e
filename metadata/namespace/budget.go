package namespace

import "runtime/metrics"

// leastMemory is how much files and directories may take in any case, or all that Config.Memory gives them.
const leastMemory = 64 << 20

// FitMemory makes the budget what fits into the process, Config.Memory at most. Blocks, answers, the store's tables in memory and whatever else the
// process does are not in the budget, and live with it under one limit, the runtime's (GOMEMLIMIT): when all that lives is more than three fifths of
// that, the collector has no room to wait, and takes the processors from everybody. So the budget gives way. Whoever runs a namespace calls it
// every few seconds; one call after each collection counts.
func (ns *Namespace) FitMemory() {
	samples := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(samples)
	cycle, live, limit := samples[0].Value.Uint64(), int64(samples[1].Value.Uint64()), int64(samples[2].Value.Uint64())
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.cfg.Memory > 0 && cycle != ns.fitted {
		ns.fitted = cycle
		ns.memory = fit(ns.cfg.Memory, limit, live, ns.resident)
	}
}

// fit is the budget of which resident bytes are taken while live bytes of limit are.
func fit(most, limit, live, resident int64) int64 {
	others := max(live-resident, 0)
	return min(most, max(limit/5*3-others, leastMemory))
}
