package demo

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// recorder writes files to the cluster for as long as the demo runs and remembers, on its own, every one whose close was
// acknowledged, when, and what was in it.
type recorder struct {
	fs  *dfs.Client
	dir string

	mu    sync.Mutex
	acks  []fileAck
	tries int
}

type fileAck struct {
	path string
	size int
	sum  [sha256.Size]byte
	at   time.Time
}

// run writes one file after the other until ctx is done. A write that fails is not acknowledged and its name not used
// again.
func (r *recorder) run(ctx context.Context) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 0; ctx.Err() == nil; n++ {
		data := make([]byte, 1+rng.IntN(64<<10))
		if n%20 == 19 {
			data = make([]byte, 3<<20) // more than one block
		}
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		name := fmt.Sprintf("%s/file-%05d", r.dir, n)
		attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := r.fs.WriteFile(attempt, name, data, true)
		cancel()
		r.mu.Lock()
		r.tries++
		if err == nil {
			r.acks = append(r.acks, fileAck{name, len(data), sha256.Sum256(data), time.Now()})
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// firstAfter is when the first write that began after a moment... was acknowledged; ok is false while there is none.
func (r *recorder) firstAfter(t time.Time) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.acks, func(a fileAck) bool { return a.at.After(t) })
	if i < 0 {
		return time.Time{}, false
	}
	return r.acks[i].at, true
}

func (r *recorder) all() []fileAck {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.acks)
}

// fact is a line of the file in which executors record the acknowledgements they got (HOPS_RECORD).
type fact struct {
	Kind      string  `json:"kind"` // start, metric, checkpoint
	Trial     string  `json:"trial"`
	Attempt   int     `json:"attempt"`
	Step      int64   `json:"step"`
	Value     float64 `json:"value"`
	Resume    int64   `json:"resume"`
	Container string  `json:"container"`
	// GPUs that the container has, and when it said so, in milliseconds.
	GPUs   []string `json:"gpus"`
	TimeMS int64    `json:"time_ms"`
	URI    string   `json:"uri"`
	Files  []struct {
		Name  string `json:"name"`
		Size  int64  `json:"size"`
		CRC32 uint32 `json:"crc32"`
	} `json:"files"`
}

func readFacts(path string) ([]fact, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var facts []fact
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return facts, nil // a line without end was being written when its executor was killed
		}
		if err != nil {
			return nil, err
		}
		var one fact
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		facts = append(facts, one)
	}
}
