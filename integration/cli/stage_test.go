package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gohops/hops/integration/cluster"
	"github.com/gohops/hops/integration/process"
	"github.com/gohops/hops/metadata"
)

// What is sent with jobs is sent once, kept while it is used, and removed when nobody has used it for a month.
func TestStagedArchivesGoAMonthAfterTheirLastUse(t *testing.T) {
	ctx := process.Context(t)
	c := cluster.Start(t, cluster.Config{}).Client("")
	dir := t.TempDir()
	stage := func(name string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		staged, err := c.Stage(ctx, []string{file})
		if err != nil {
			t.Fatal(err)
		}
		return staged.URI
	}
	age := func(uri string, days int) {
		t.Helper()
		if err := c.FS().SetTimes(ctx, uri, metadata.TimeOf(time.Now().AddDate(0, 0, -days)), -1); err != nil {
			t.Fatal(err)
		}
	}
	gone, used, young := stage("gone"), stage("used"), stage("young")
	age(gone, 31)
	age(used, 31)
	age(young, 29)
	if again := stage("used"); again != used {
		t.Errorf("the same file is %s, then %s", used, again)
	}
	stage("new")
	for _, uri := range []string{used, young} {
		if _, err := c.FS().Stat(ctx, uri); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.FS().Stat(ctx, gone); !errors.Is(err, metadata.ErrNotExist) {
		t.Errorf("what nobody has used for a month: %v", err)
	}
}
