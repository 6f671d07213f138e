package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

const (
	// signingKeys is how many keys are live: the one that signs, and the next one, which everybody knows before it signs.
	signingKeys = 2
	// maxBlockKeys is how many keys may be kept; with HDFS's times there are four.
	maxBlockKeys = 64
	// maxKeep bounds how long a key is kept: a year.
	maxKeep = 365 * 24 * 3600 * 1000
)

// rollBlockKeys adds keys, so that the next key signs from now on. Those that have ceased to sign are kept for op.Keep,
// and dropped by the first roll after that. False: there is a newer key than the proposer knew, and nothing was done.
//
// Errors: ErrInvalidArgument.
func (ns *Namespace) rollBlockKeys(t *txn, op *logpb.RollBlockKeys) {
	m := &ns.meta
	newest := newestKey(m.keys)
	if len(op.Seeds) == 0 || len(op.Seeds) > signingKeys || op.Keep < 0 || op.Keep > maxKeep || newest > 1<<30 {
		t.failf(metadata.ErrInvalidArgument, "Roll of %d block keys after %d, kept for %d ms", len(op.Seeds), newest, op.Keep)
		return
	}
	for _, seed := range op.Seeds {
		if len(seed) != metadata.KeySeedSize {
			t.failf(metadata.ErrInvalidArgument, "Block key of %d bytes, want %d", len(seed), metadata.KeySeedSize)
			return
		}
	}
	if op.After != newest {
		return
	}
	var keys []*logpb.BlockKey
	for _, k := range m.keys {
		if k.Expires == 0 || LogTime(k.Expires) >= m.logTime {
			keys = append(keys, k)
		}
	}
	if len(keys)+len(op.Seeds) > maxBlockKeys {
		t.failf(metadata.ErrInvalidArgument, "Block keys are rolled too often: %d are still needed, %d is the limit", len(keys), maxBlockKeys)
		return
	}
	for _, seed := range op.Seeds {
		newest++
		keys = append(keys, &logpb.BlockKey{Id: newest, Seed: seed})
	}
	for i, k := range keys[:max(len(keys)-signingKeys, 0)] {
		if k.Expires == 0 {
			keys[i] = &logpb.BlockKey{Id: k.Id, Seed: k.Seed, Expires: max(int64(m.logTime)+op.Keep, 1)}
		}
	}
	m.keys, m.rolled = keys, m.logTime
	t.result.OK = true
}

func newestKey(keys []*logpb.BlockKey) int32 {
	if len(keys) == 0 {
		return 0
	}
	return keys[len(keys)-1].Id
}

// soundKeys reports whether keys are as rollBlockKeys leaves them.
func soundKeys(keys []*logpb.BlockKey) bool {
	before := int32(0)
	for i, k := range keys {
		if k == nil || k.Id <= before || len(k.Seed) != metadata.KeySeedSize || (k.Expires == 0) != (i >= len(keys)-signingKeys) {
			return false
		}
		before = k.Id
	}
	return len(keys) <= maxBlockKeys
}
