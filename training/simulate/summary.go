package simulate

import "math"

// Spread is a mean with the standard deviation of a sample.
type Spread struct {
	Mean float64 `json:"mean"`
	Std  float64 `json:"std"`
}

// Summary is what several searches came to, each with a seed of its own.
type Summary struct {
	Searches  int     `json:"searches"`
	Best      Spread  `json:"best"`
	Test      *Spread `json:"test,omitempty"`
	BestFinal Spread  `json:"best_final"`
	Trials    Spread  `json:"trials"`
	Ended     Spread  `json:"ended"`
	Stopped   Spread  `json:"stopped"`
	Epochs    Spread  `json:"epochs"`
	Time      Spread  `json:"time_ms"`
}

// Repeat simulates a study with the seeds from its own on.
func Repeat(s Study, searches int) (Summary, error) {
	spec := *s.Spec
	seed := spec.RandomSeed()
	var best, test, final, trials, ended, stopped, epochs, times []float64
	for i := range searches {
		spec.Seed = new(seed + uint64(i))
		s.Spec = &spec
		o, err := Run(s)
		if err != nil {
			return Summary{}, err
		}
		if o.Best != nil {
			best, final = append(best, *o.Best), append(final, *o.BestFinal)
		}
		if o.Test != nil {
			test = append(test, *o.Test)
		}
		trials, ended, stopped = append(trials, float64(o.Trials)), append(ended, float64(o.Ended)), append(stopped, float64(o.Stopped))
		epochs, times = append(epochs, float64(o.Epochs)), append(times, o.Time)
	}
	out := Summary{
		Searches: searches, Best: spread(best), BestFinal: spread(final), Trials: spread(trials), Ended: spread(ended), Stopped: spread(stopped), Epochs: spread(epochs),
		Time: spread(times),
	}
	if len(test) > 0 {
		out.Test = new(spread(test))
	}
	return out, nil
}

func spread(values []float64) Spread {
	n := float64(len(values))
	if n == 0 {
		return Spread{}
	}
	sum, squares := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / n
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return Spread{mean, math.Sqrt(squares / max(n-1, 1))}
}
