package simulator

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

// Philly describes a workload like that of the GPU clusters in "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training
// Workloads" (Jeon et al., ATC 2019): durations with a heavy tail, gangs of powers of two, most jobs small, arrivals by the hour of
// the day and the day of the week, in bursts, and virtual clusters of different sizes.
type Philly struct {
	Seed uint64
	Jobs int
	// Load is how many GPU-hours the jobs need, as a part of what GPUs have from the first arrival to the last.
	Load float64
	// GPUs of the cluster, and of a node: jobs of more GPUs are gangs of whole nodes.
	GPUs, PerNode int
	Days          float64
	Queues        []string
}

// sizes are gangs in GPUs, and how often they come.
var sizes = []struct {
	gpus  int
	share float64
}{{1, 0.70}, {2, 0.09}, {4, 0.08}, {8, 0.07}, {16, 0.035}, {32, 0.015}, {64, 0.008}, {128, 0.002}}

// Generate makes a workload. Equal descriptions make equal workloads.
func Generate(p Philly) (*Workload, error) {
	switch {
	case p.Jobs < 1 || p.Jobs > maxJobs:
		return nil, fmt.Errorf("jobs: %d is not between 1 and %d", p.Jobs, maxJobs)
	case !(p.Load > 0 && p.Load <= 100):
		return nil, fmt.Errorf("load: %g is not between 0 and 100", p.Load)
	case p.PerNode < 1 || p.PerNode > maxGPUs || p.GPUs < p.PerNode || p.GPUs > maxNodes*8:
		return nil, errors.New("gpus: a cluster has at least the GPUs of a node, which are at least one")
	case !(p.Days > 0 && p.Days <= 3650):
		return nil, fmt.Errorf("days: %g is not between 0 and 3650", p.Days)
	case len(p.Queues) == 0 || len(p.Queues) > 10_000:
		return nil, errors.New("queues: at least one is needed")
	}
	r := rand.New(rand.NewPCG(p.Seed, 0x9e3779b97f4a7c15))
	w := &Workload{Jobs: make([]Job, p.Jobs)}
	weights := make([]float64, len(p.Queues)) // the k-th queue gets 1/(k+1) of what the first gets
	for i := range weights {
		weights[i] = 1 / float64(i+1)
	}
	need := 0.0
	for i := range w.Jobs {
		j := &w.Jobs[i]
		j.ID = fmt.Sprintf("job_%06d", i+1)
		q := pick(r, weights)
		j.Queue = p.Queues[q]
		j.User = fmt.Sprintf("user%d", q*20+int(math.Floor(20*r.Float64()*r.Float64())))
		gpus := 1
		for x, k := r.Float64(), 0; k < len(sizes); k++ {
			if x -= sizes[k].share; x < 0 || k == len(sizes)-1 {
				gpus = sizes[k].gpus
				break
			}
		}
		gpus = min(gpus, max(1, p.GPUs/4)) // nobody asks for more than a quarter
		part := &Part{Count: 1, Gang: 1, Shape: Shape{GPUs: gpus, VCores: 6 * gpus, Memory: int64(gpus) * 64 << 30}}
		if gpus > p.PerNode {
			n := (gpus + p.PerNode - 1) / p.PerNode
			part = &Part{Count: n, Gang: n, Shape: Shape{GPUs: p.PerNode, VCores: 6 * p.PerNode, Memory: int64(p.PerNode) * 64 << 30}}
		}
		// Half of the jobs run for minutes, some for weeks. Larger ones run longer. A quarter fail, most of these early.
		seconds := math.Exp(6.6 + 2.0*r.NormFloat64() + 0.25*math.Log2(float64(gpus)))
		if r.Float64() < 0.25 {
			seconds *= r.Float64() * r.Float64()
		}
		part.Duration = int64(min(max(seconds, 20), 21*24*3600) * 1000)
		j.Parts = []Part{*part}
		need += float64(part.Duration) * float64(j.GPUs())
		j.Checkpoint = int64([]float64{10, 20, 30, 60}[r.IntN(4)]) * minute
	}
	// Durations are scaled so that the load is what was asked for; none is longer than half of the days.
	length := p.Days * float64(day)
	most := int64(length / 2)
	for range 20 {
		scale := p.Load * length * float64(p.GPUs) / need
		need = 0
		for i := range w.Jobs {
			j := &w.Jobs[i]
			d := &j.Parts[0].Duration
			*d = min(max(int64(float64(*d)*scale), 20*second), max(most, minute))
			need += float64(*d) * float64(j.GPUs())
		}
	}
	for i := range w.Jobs { // users say more than it takes: one to five times, in the steps in which people think
		j := &w.Jobs[i]
		j.Walltime = roundUp(int64(float64(j.Parts[0].Duration)*(1+4*r.Float64()*r.Float64())), 15*minute)
	}
	// Arrivals: the night has half of the day's, the weekend six tenths, and one in three comes right after the one before.
	at := 0.0
	mean, last := length/float64(p.Jobs), 0.0
	for i := range w.Jobs {
		if i > 0 && r.Float64() < 1.0/3 {
			at += r.ExpFloat64() * mean * 0.05
		} else {
			at += r.ExpFloat64() * mean * 1.5 / rhythm(at)
		}
		w.Jobs[i].Arrival = int64(at)
		last = at
	}
	for i := range w.Jobs { // the last arrives when the days are over
		w.Jobs[i].Arrival = int64(float64(w.Jobs[i].Arrival) * length / max(last, 1))
	}
	w.shift()
	return w, nil
}

// rhythm is how many jobs arrive at a time, beside the mean.
func rhythm(at float64) float64 {
	h := math.Mod(at/float64(hour), 24)
	f := 1 + 0.5*math.Sin((h-9)/24*2*math.Pi)
	if math.Mod(at/float64(day), 7) >= 5 {
		f *= 0.6
	}
	return f
}

func pick(r *rand.Rand, weights []float64) int {
	sum := 0.0
	for _, x := range weights {
		sum += x
	}
	x := r.Float64() * sum
	for i, weight := range weights {
		if x -= weight; x < 0 {
			return i
		}
	}
	return len(weights) - 1
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
