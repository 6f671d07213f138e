package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
)

func TestRetention(t *testing.T) {
	cks := func(values ...float64) (out []training.Checkpoint) {
		for i, v := range values {
			out = append(out, training.Checkpoint{Step: int64(i + 1), URI: string(rune('a' + i)), Metric: new(training.M(v))})
		}
		return out
	}
	for _, c := range []struct {
		r     training.Retention
		d     training.Direction
		needs Needs
		in    []training.Checkpoint
		want  []int64
	}{
		{training.Retention{Last: 1, Best: 1}, training.Max, Needs{}, cks(.1, .9, .3, .2), []int64{2, 4}},
		{training.Retention{Last: 1, Best: 1}, training.Min, Needs{}, cks(.1, .9, .3, .2), []int64{1, 4}},
		{training.Retention{Last: 1}, training.Max, Needs{}, cks(.1, .9, .3), []int64{3}},
		{training.Retention{}, training.Max, Needs{}, cks(.1, .9, .3), []int64{3}},
		{training.Retention{Last: 2, Every: 2}, training.Max, Needs{}, cks(.1, .9, .3, .2, .1), []int64{2, 4, 5}},
		{training.Retention{Last: -1}, training.Max, Needs{}, cks(.1, .9), []int64{1, 2}},
		{training.Retention{Last: 1, Best: 1}, training.Max, Needs{}, cks(.5, .5, .5), []int64{3}},
		{training.Retention{Last: 1, Best: 2}, training.Max, Needs{}, []training.Checkpoint{{Step: 1}, {Step: 2, Metric: new(training.M(1))}, {Step: 3}}, []int64{2, 3}},
		{training.Retention{Rungs: true}, training.Max, Needs{Rungs: []int{1, 3, 9}}, cks(.1, .9, .3, .2, .1), []int64{1, 3, 5}},
		{training.Retention{}, training.Max, Needs{Rungs: []int{1, 3, 9}}, cks(.1, .9, .3, .2, .1), []int64{5}},
		{training.Retention{Rungs: true}, training.Max, Needs{Rungs: []int{4}}, []training.Checkpoint{{Step: 2, Attempt: 1}, {Step: 2, Attempt: 2}, {Step: 7}}, []int64{2, 7}},
		{training.Retention{}, training.Max, Needs{Copies: []int{1, 2, 8}}, cks(.1, .9, .3, .2, .1), []int64{1, 2, 5}},
		{training.Retention{}, training.Max, Needs{Others: map[string]bool{"b": true}}, cks(.1, .9, .3), []int64{2, 3}},
	} {
		var got []int64
		for i, k := range Keep(c.r, c.in, c.d, c.needs) {
			if k {
				got = append(got, c.in[i].Step)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v %s: %s", c.r, c.d, diff)
		}
	}
}

// The manifests in testdata are what the Python package writes and reads (client/python/tests/test_checkpoint.py).
func TestManifestsOfThePythonPackage(t *testing.T) {
	names, err := filepath.Glob("testdata/*.json")
	if err != nil || len(names) < 3 {
		t.Fatalf("%v, %v", names, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ParseManifest(b)
		base := strings.TrimSuffix(filepath.Base(name), ".json")
		if why, bad := strings.CutPrefix(base, "bad-"); bad {
			if err == nil {
				t.Errorf("%s was taken", why)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", base, err)
			continue
		}
		if m.Trial != 7 || m.Attempt != 2 || m.Step != 6 {
			t.Errorf("%s: %+v", base, m)
		}
		for _, f := range m.Files {
			if f.Blob != "" {
				blob, err := ParseBlob(f.Blob)
				if err != nil || blob.String() != f.Blob {
					t.Errorf("%s: %v, %v", base, blob, err)
				}
			}
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	names, _ := filepath.Glob("testdata/*.json")
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			for _, at := range []string{Path("/e/0007/checkpoints/1/step-1", "/e/.blobs", file)} {
				if !strings.HasPrefix(at, "/e/0007/checkpoints/1/step-1/") && !strings.HasPrefix(at, "/e/.blobs/") {
					t.Fatalf("%q lies at %s", file.Name, at)
				}
			}
		}
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseManifest(out)
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

// A world of trials that save, lose and drop checkpoints in any order; blobs are removed late, by anybody, more than
// once. Whatever is committed is whole, and in the end nothing else is left.
func TestBlobsOfCommittedCheckpointsAreThere(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		type save struct {
			trial, attempt int
			step           int64
			files          []training.File
		}
		var blobs Blobs
		disk := map[string]bool{}
		committed := map[training.TrialID][]save{}
		attempt, step := map[int]int{}, map[int]int64{}
		var flight []save
		var free []string
		for range 200 {
			switch rng.IntN(4) {
			case 0: // a trial begins to save: it writes what it does not find anywhere
				trial := 1 + rng.IntN(3)
				if attempt[trial] == 0 || rng.IntN(8) == 0 {
					attempt[trial]++ // the attempt before is lost; its save may still be in flight
				}
				step[trial]++
				s := save{trial, attempt[trial], step[trial], nil}
				for i := range 3 {
					sum := [32]byte{byte(rng.IntN(4)), byte(i)}
					name := Blob{sum, training.TrialID(trial), s.attempt, s.step}.String()
					for found := range disk {
						if b, _ := ParseBlob(found); b.Sum == sum && (b.Trial != training.TrialID(trial) || rng.IntN(2) == 0) {
							name = found
							break
						}
					}
					if b, _ := ParseBlob(name); b.Trial == training.TrialID(trial) && b.Attempt == s.attempt && b.Step == s.step {
						disk[name] = true
					}
					s.files = append(s.files, training.File{Name: string(rune('a' + i)), Size: 1, Blob: name})
				}
				flight = append(flight, s)
			case 1: // a save comes to its commit
				if len(flight) == 0 {
					continue
				}
				i := rng.IntN(len(flight))
				s := flight[i]
				flight = slices.Delete(flight, i, i+1)
				id := training.TrialID(s.trial)
				if s.attempt != attempt[s.trial] || len(committed[id]) > 0 && committed[id][len(committed[id])-1].step >= s.step {
					continue // fenced
				}
				if err := blobs.Check(id, s.attempt, s.step, s.files); err != nil {
					if !errors.Is(err, ErrGone) {
						t.Fatal(err)
					}
					continue
				}
				blobs.Add(s.files)
				committed[id] = append(committed[id], s)
			case 2: // retention
				id := training.TrialID(1 + rng.IntN(3))
				if len(committed[id]) > 1 {
					free = append(free, blobs.Drop(committed[id][0].files)...)
					committed[id] = committed[id][1:]
				}
			case 3: // a controller, the newest one or not, removes
				if len(free) > 0 {
					delete(disk, free[rng.IntN(len(free))])
				}
			}
			for id, saves := range committed {
				for _, s := range saves {
					for _, f := range s.files {
						if !disk[f.Blob] || !blobs.Uses(f.Blob) {
							t.Fatalf("seed %d: %v/%d step %d has lost %s", seed, id, s.attempt, s.step, f.Blob)
						}
					}
				}
			}
		}
		for id, saves := range committed {
			for _, s := range saves {
				free = append(free, blobs.Drop(s.files)...)
			}
			delete(committed, id)
		}
		if len(blobs.used) != 0 {
			t.Fatalf("seed %d: %v are used by nothing", seed, blobs.used)
		}
	}
}

func TestBlobsWithOtherBytesAreRefused(t *testing.T) {
	var b Blobs
	name := Blob{Trial: 1, Attempt: 1, Step: 1}.String()
	b.Add([]training.File{{Name: "a", Size: 3, Blob: name}})
	if err := b.Check(2, 1, 1, []training.File{{Name: "a", Size: 4, Blob: name}}); !errors.Is(err, ErrGone) {
		t.Errorf("another size: %v", err)
	}
	if err := b.Check(2, 1, 1, []training.File{{Name: "a", Blob: "../../etc/passwd"}}); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
}

// tree is a filesystem: sizes by path, and the content of manifests.
type tree struct {
	sizes map[string]int64
	text  map[string]string
}

func (d tree) Open(_ context.Context, p string, _ int64) (io.ReadCloser, error) {
	s, ok := d.text[p]
	if !ok {
		return nil, metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
	}
	return io.NopCloser(strings.NewReader(s)), nil
}

func (d tree) Stat(_ context.Context, p string) (metadata.FileStatus, error) {
	n, ok := d.sizes[p]
	if !ok {
		return metadata.FileStatus{}, metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
	}
	return metadata.FileStatus{Type: metadata.TypeFile, Length: n}, nil
}

func (d tree) List(_ context.Context, p string) (out []metadata.FileStatus, err error) {
	for name, n := range d.sizes {
		if path.Dir(name) == p {
			out = append(out, metadata.FileStatus{Name: path.Base(name), Type: metadata.TypeFile, Length: n})
		}
	}
	return out, nil
}

func TestTornCheckpointsAreNamed(t *testing.T) {
	const uri, blobs = "/e/0007/checkpoints/2/step-6", "/e/.blobs"
	blob := Blob{[32]byte{1}, 7, 2, 6}.String()
	files := []training.File{{Name: "state.json", Size: 5, CRC32: 1}, {Name: "variables/index", Size: 7, CRC32: 2}, {Name: "0001.safetensors", Size: 9, Blob: blob}}
	manifest := func(m Manifest) string {
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	whole := Manifest{Version: 3, Trial: 7, Attempt: 2, Step: 6, Blobs: "../../../../.blobs", Files: files}
	for name, c := range map[string]struct {
		change func(d *tree, claim *Claim)
		want   string
	}{
		"whole":          {func(*tree, *Claim) {}, ""},
		"no manifest":    {func(d *tree, _ *Claim) { d.text = nil }, "MANIFEST.json is not there"},
		"torn manifest":  {func(d *tree, _ *Claim) { d.text[uri+"/MANIFEST.json"] = manifest(whole)[:80] }, "MANIFEST.json: unexpected end"},
		"file missing":   {func(d *tree, _ *Claim) { delete(d.sizes, uri+"/variables/index") }, "variables/index is not there"},
		"file short":     {func(d *tree, _ *Claim) { d.sizes[uri+"/state.json"] = 4 }, "state.json has 4 bytes, the manifest says 5"},
		"blob missing":   {func(d *tree, _ *Claim) { delete(d.sizes, BlobPath(blobs, blob)) }, "0001.safetensors is not there (blob " + blob},
		"blob short":     {func(d *tree, _ *Claim) { d.sizes[BlobPath(blobs, blob)] = 8 }, "0001.safetensors has 8 bytes"},
		"other CRC":      {func(_ *tree, c *Claim) { c.Files = slices.Clone(files); c.Files[0].CRC32 = 9 }, "state.json in the commit is not what the manifest says"},
		"fewer files":    {func(_ *tree, c *Claim) { c.Files = files[:2] }, "the manifest names 3 files, the commit 2"},
		"other trial":    {func(_ *tree, c *Claim) { c.Trial = 8 }, "is of trial 0007/2, step 6"},
		"blobs of other": {func(_ *tree, c *Claim) { c.Blobs = "/f/.blobs" }, "its blobs are in /e/.blobs"},
	} {
		d := tree{map[string]int64{uri + "/state.json": 5, uri + "/variables/index": 7, BlobPath(blobs, blob): 9}, map[string]string{uri + "/MANIFEST.json": manifest(whole)}}
		claim := Claim{7, 2, 6, uri, blobs, files}
		c.change(&d, &claim)
		err := Inspect(t.Context(), d, claim)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if _, ok := errors.AsType[*Incomplete](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
