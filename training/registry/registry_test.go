package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/store"
	"github.com/gohops/hops/training/store/storetest"
)

func open(t *testing.T) (*storetest.Memory, *Registry) {
	t.Helper()
	m := storetest.New()
	r, err := Open(m, "lab")
	if err != nil {
		t.Fatal(err)
	}
	r.now = func() time.Time { return time.UnixMilli(m.Now) }
	m.Put("/out/weights", "12345")
	m.Put("/out/sub/vocab", "abc")
	return m, r
}

func TestAModelIsThereWholeWithItsLineage(t *testing.T) {
	m, r := open(t)
	ctx := t.Context()
	exp := "/Projects/lab/Experiments/application_1_0001_1"
	m.Put(exp+"/experiment.json", `{"spec":{"code":{"uri":"/a.zip","sha256":"f00"}}}`)
	m.Put(exp+"/data.json", `[{"path":"/data/x","length":3,"mtime":5,"file_id":9}]`)
	m.Put(exp+"/0007/.hparams.json", `{"lr":0.1}`)
	x := Model{Name: "digits", Trial: "0007", Source: "/out", Metrics: map[string]training.Metric{"acc": training.M(0.9)}, Description: "first"}
	if err := Lineage(ctx, m, &x, exp); err != nil {
		t.Fatal(err)
	}
	made, err := r.Export(ctx, x, FromCluster(m, "/out"), false)
	if err != nil || made.Version != 1 {
		t.Fatalf("%+v, %v", made, err)
	}
	if got := m.Paths(r.Root()); !slices.Equal(got, []string{"digits", "digits/1", "digits/1/model.json", "digits/1/sub", "digits/1/sub/vocab", "digits/1/weights"}) {
		t.Errorf("the directory holds %q", got)
	}
	got, err := r.Version(ctx, "digits", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got.Experiment != "application_1_0001_1" || got.Code.SHA256 != "f00" || got.Data[0].FileID != 9 || got.Params["lr"] != training.Float(0.1) || got.User != "ann" || got.Bytes() != 8 || got.Files[1].CRC32 != 0xcbf53a1c {
		t.Errorf("%+v, files %+v", got, got.Files)
	}
	local := filepath.Join(t.TempDir(), "m")
	if err := r.Get(ctx, got, local); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(local, "sub", "vocab")); err != nil || string(b) != "abc" {
		t.Errorf("%q, %v", b, err)
	}
	if err := r.Get(ctx, got, local); !errors.Is(err, metadata.ErrExist) {
		t.Errorf("over what is there: %v", err)
	}
	again, err := r.Export(ctx, Model{Name: "digits"}, FromLocal(local), false)
	if err != nil || again.Version != 2 || len(again.Files) != 2 {
		t.Errorf("from a local directory: %+v, %v", again, err)
	}
	refs, skipped, err := References(ctx, m)
	if err != nil || len(skipped) != 0 || refs["application_1_0001_1"] != "model digits version 1 of project lab" {
		t.Errorf("%v, %v, %v", refs, skipped, err)
	}
	m.Put(got.Directory+"/weights", "1234X")
	if err := r.Get(ctx, got, filepath.Join(t.TempDir(), "n")); err == nil || !strings.Contains(err.Error(), "is not what was exported") {
		t.Errorf("damaged: %v", err)
	}
}

func TestEachOfManyWritersGetsANumberOfItsOwn(t *testing.T) {
	m, r := open(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]bool{}
	for i := range 20 {
		wg.Go(func() {
			made, err := r.Export(t.Context(), Model{Name: "x", Description: fmt.Sprint(i)}, FromCluster(m, "/out"), false)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[made.Version] {
				t.Errorf("version %d twice", made.Version)
			}
			seen[made.Version] = true
			if read, err := r.Version(t.Context(), "x", made.Version); err != nil || read.Description != fmt.Sprint(i) {
				t.Errorf("version %d is %+v, %v; want writer %d", made.Version, read, err, i)
			}
		})
	}
	wg.Wait()
	if len(seen) != 20 || !seen[1] || !seen[20] {
		t.Errorf("versions %v", seen)
	}
}

type broken struct{ Source }

func (b broken) Walk(ctx context.Context, take func(string, io.Reader) error) error {
	return errors.Join(b.Source.Walk(ctx, take), errors.New("the disk is gone"))
}

func TestWhatIsNotWholeIsNotThere(t *testing.T) {
	m, r := open(t)
	ctx := t.Context()
	if _, err := r.Export(ctx, Model{Name: "x"}, broken{FromCluster(m, "/out")}, false); err == nil {
		t.Fatal("no error")
	}
	if got := m.Paths(r.Root()); !slices.Equal(got, []string{"x"}) {
		t.Errorf("left: %q", got)
	}
	if _, err := r.Version(ctx, "x", 0); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	m.Put("/Projects/lab/Models/x/.new-dead/weights", "1") // of a writer that died
	m.Put("/Projects/lab/Models/x/7/no-model", "1")
	m.Put("/Projects/lab/Models/x/007/model.json", "{}")
	made, err := r.Export(ctx, Model{Name: "x"}, FromCluster(m, "/out"), false)
	if err != nil || made.Version != 8 {
		t.Errorf("%+v, %v", made, err)
	}
	m.Now += 2 * 24 * 3600 * 1000
	if _, err := r.Export(ctx, Model{Name: "x"}, FromCluster(m, "/out"), false); err != nil {
		t.Fatal(err)
	}
	if got := m.Paths(r.Root()); slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, ".new-") }) {
		t.Errorf("not cleaned up: %q", got)
	}
	if all, err := r.Versions(ctx, "x"); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestNumbersThatAreAskedFor(t *testing.T) {
	m, r := open(t)
	ctx := t.Context()
	src := FromCluster(m, "/out")
	if _, err := r.Export(ctx, Model{Name: "x", Version: 5}, src, false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Export(ctx, Model{Name: "x", Version: 5}, src, false); !errors.Is(err, metadata.ErrExist) {
		t.Errorf("taken: %v", err)
	}
	if made, err := r.Export(ctx, Model{Name: "x", Version: 5, Description: "new"}, src, true); err != nil || made.Version != 5 {
		t.Errorf("overwritten: %v", err)
	}
	if made, err := r.Export(ctx, Model{Name: "x"}, src, false); err != nil || made.Version != 6 {
		t.Errorf("next: %+v, %v", made, err)
	}
	if err := r.Delete(ctx, "x", 9); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	if err := r.Delete(ctx, "x", 6); err != nil {
		t.Error(err)
	}
	if v, err := r.Version(ctx, "x", 0); err != nil || v.Version != 5 || v.Description != "new" {
		t.Errorf("%+v, %v", v, err)
	}
	if err := r.Delete(ctx, "x", 0); err != nil {
		t.Error(err)
	}
	if _, err := r.Versions(ctx, "x"); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

func TestBestModel(t *testing.T) {
	m, r := open(t)
	ctx := t.Context()
	for _, text := range []string{"0.5", `"NaN"`, "0.9", "0.9", `"Infinity"`, "0.1"} {
		var v training.Metric
		if err := v.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Export(ctx, Model{Name: "x", Metrics: map[string]training.Metric{"acc": v}}, FromCluster(m, "/out"), false); err != nil {
			t.Fatal(err)
		}
	}
	for d, want := range map[training.Direction]int{training.Max: 3, training.Min: 6} {
		if b, err := r.Best(ctx, "x", "acc", d); err != nil || b.Version != want {
			t.Errorf("%s: %+v, %v; want version %d", d, b, err, want)
		}
	}
	if _, err := r.Best(ctx, "x", "loss", training.Max); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "there are acc") {
		t.Error(err)
	}
}

func TestBadNamesAndValues(t *testing.T) {
	m, r := open(t)
	ctx := t.Context()
	for _, name := range []string{"", "a/b", "..", ".x", "a..b", "a b", strings.Repeat("n", 101)} {
		if _, err := r.Export(ctx, Model{Name: name}, FromCluster(m, "/out"), false); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("name %q: %v", name, err)
		}
		if _, err := Open(m, name); name != "" && !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("project %q: %v", name, err)
		}
	}
	if _, err := r.Export(ctx, Model{Name: "x", Metrics: map[string]training.Metric{"a": {Text: "high"}}}, FromCluster(m, "/out"), false); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Error(err)
	}
	if _, err := r.Export(ctx, Model{Name: "x", Source: "/none"}, FromCluster(m, "/none"), false); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

func TestCheckpointsOfTrials(t *testing.T) {
	m := storetest.New()
	ctx := t.Context()
	m.Put("/t/checkpoints/1/step-3/MANIFEST.json", "{}")
	m.Put("/t/checkpoints/2/step-9/MANIFEST.json", "{}")
	m.Put("/t/checkpoints/2/step-12.tmp/w", "")
	if dir, at, err := Checkpoint(ctx, m, "/t", []int64{3, 9}, nil); err != nil || dir != "/t/checkpoints/2/step-9" || at != 9 {
		t.Errorf("%s, %d, %v", dir, at, err)
	}
	if dir, _, err := Checkpoint(ctx, m, "/t", []int64{3, 9}, new(int64(3))); err != nil || dir != "/t/checkpoints/1/step-3" {
		t.Errorf("%s, %v", dir, err)
	}
	for _, c := range []struct {
		kept []int64
		step *int64
	}{{nil, nil}, {[]int64{3}, new(int64(9))}, {[]int64{12}, nil}} {
		if _, _, err := Checkpoint(ctx, m, "/t", c.kept, c.step); !errors.Is(err, ErrNone) {
			t.Errorf("%v, %v: %v", c.kept, c.step, err)
		}
	}
}

func TestAModelOfACheckpointHasItsBlobs(t *testing.T) {
	m, r := open(t)
	ctx := t.Context()
	dir := "/e/0001/checkpoints/1/step-3"
	blob := fmt.Sprintf("%x-0001-1-3", sha256.Sum256([]byte("12345")))
	m.Put("/e/.blobs/"+blob[:2]+"/"+blob, "12345")
	m.Put(dir+"/small", "abc")
	m.Put(dir+"/leftover", "not named")
	m.Put(dir+"/MANIFEST.json", `{"version":3,"trial":"0001","attempt":1,"step":3,"blobs":"../../../../.blobs","format":{"name":"torch","seed":12345678901234567890},"files":[{"name":"w/0","size":5,"blob":"`+blob+`"},{"name":"small","size":3,"crc32":891568578}]}`)
	made, err := r.Export(ctx, Model{Name: "x", Source: dir}, FromCheckpoint(m, dir), false)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Paths(made.Directory); !slices.Equal(got, []string{"MANIFEST.json", "model.json", "small", "w", "w/0"}) {
		t.Errorf("%q", got)
	}
	if text, err := store.ReadFile(ctx, m, made.Directory+"/MANIFEST.json"); err != nil || strings.Contains(string(text), "blob") || !strings.Contains(string(text), `"version":1`) || !strings.Contains(string(text), `"seed":12345678901234567890`) {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := store.ReadFile(ctx, m, made.Directory+"/w/0"); err != nil || string(text) != "12345" {
		t.Errorf("%q, %v", text, err)
	}
	again, err := r.Export(ctx, Model{Name: "y", Source: made.Directory}, FromCheckpoint(m, made.Directory), false) // a model's directory is a checkpoint again
	if err != nil || len(again.Files) != 3 {
		t.Errorf("%+v, %v", again, err)
	}
	m.Put("/e/.blobs/"+blob[:2]+"/"+blob, "1234X")
	if _, err := r.Export(ctx, Model{Name: "x", Source: dir}, FromCheckpoint(m, dir), false); err == nil || !strings.Contains(err.Error(), "not what was committed") {
		t.Error(err)
	}
}
