package localizer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/gohops/hops/nodemanager"
)

// shared is a filesystem of several users. Paths have owners; others may do with them what the last digit of the mode says.
type shared struct {
	memory
	owners map[string]string
}

func newShared(files map[string]string) *shared {
	s := &shared{memory{files: map[string][]byte{}, modes: map[string]fs.FileMode{"/": 0o755}}, map[string]string{}}
	for name, text := range files {
		s.files[name] = []byte(text)
	}
	return s
}

func (s *shared) put(name, owner string, mode fs.FileMode) {
	s.owners[name], s.modes[name] = owner, mode
}

// view is shared as one user sees it. Stat wants rights on the directories above only, as HDFS does.
type view struct {
	*shared
	user string
}

func (v view) may(op, name string, bit fs.FileMode) error {
	if v.owners[name] != v.user && v.modes[name]&bit == 0 {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrPermission}
	}
	return nil
}

func (v view) Stat(ctx context.Context, name string) (Info, error) {
	if dir, _, ok := strings.Cut(name[1:], "/"); ok {
		if err := v.may("stat", "/"+dir, 0o001); err != nil {
			return Info{}, err
		}
	}
	return v.memory.Stat(ctx, name)
}

func (v view) Readable(ctx context.Context, name string) error {
	if _, err := v.Stat(ctx, name); err != nil {
		return err
	}
	return v.may("access", name, 0o004)
}

func (v view) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := v.Readable(ctx, name); err != nil {
		return nil, err
	}
	return v.memory.Open(ctx, name)
}

func TestCachedFileGoesOnlyToThoseWhoMayReadIt(t *testing.T) {
	const secret = "the secret of alice"
	hash := sum([]byte(secret))
	s := newShared(map[string]string{"/home/secret": secret, "/home/open": "for all", "/hidden/open": "for all who get here", "/tmp/mine": "x"})
	s.put("/home", "alice", 0o755)
	s.put("/hidden", "alice", 0o700)
	s.put("/home/secret", "alice", 0o600)
	s.put("/home/open", "alice", 0o644)
	s.put("/hidden/open", "alice", 0o644)
	s.put("/tmp", "root", 0o777)
	s.put("/tmp/mine", "mallory", 0o644)
	l := newLocalizer(t, Config{})
	get := func(user nodemanager.User, a nodemanager.Artifact) (string, error) {
		dir := t.TempDir()
		a.Name = "a"
		err := l.Localize(t.Context(), view{s, string(user)}, user, dir, []nodemanager.Artifact{a})
		text, _ := os.ReadFile(dir + "/a")
		return string(text), err
	}
	opens := func(user nodemanager.User, a nodemanager.Artifact, want string, downloads int64) {
		t.Helper()
		before := s.opens.Load()
		if got, err := get(user, a); err != nil || got != want {
			t.Errorf("%s gets %q, %v of %+v; want %q", user, got, err, a, want)
		}
		if n := s.opens.Load() - before; n != downloads {
			t.Errorf("%d downloads of %s for %s, want %d", n, a.URI, user, downloads)
		}
	}
	refused := func(user nodemanager.User, a nodemanager.Artifact) {
		t.Helper()
		if got, err := get(user, a); got != "" || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s gets %q, %v of %+v; want a refusal", user, got, err, a)
		}
	}
	for _, a := range []nodemanager.Artifact{
		{URI: "/home/secret"},
		{URI: "/home/secret", SHA256: hash},
		{URI: "/home/secret", Visibility: nodemanager.Public},
		{URI: "/home/secret", SHA256: hash, Visibility: nodemanager.Public},
	} {
		refused("mallory", a) // cold
		if got, err := get("alice", a); err != nil || got != secret {
			t.Fatalf("alice gets %q, %v", got, err)
		}
		refused("mallory", a) // warm
	}
	// Who knows the hash names a file of their own beside it.
	for _, visibility := range []nodemanager.Visibility{"", nodemanager.Public} {
		if got, err := get("mallory", nodemanager.Artifact{URI: "/tmp/mine", SHA256: hash, Visibility: visibility}); err == nil || got != "" {
			t.Errorf("a hash opened %q", got)
		}
	}
	// Public and readable by everybody: one download for all.
	open := nodemanager.Artifact{URI: "/home/open", Visibility: nodemanager.Public}
	opens("alice", open, "for all", 1)
	opens("mallory", open, "for all", 0)
	opens("bob", open, "for all", 0)
	// A wrong promise about it costs only who made it.
	if _, err := get("mallory", nodemanager.Artifact{URI: "/home/open", SHA256: hash, Visibility: nodemanager.Public}); err == nil {
		t.Error("a wrong hash was taken")
	}
	opens("bob", open, "for all", 0)
	// Declared public, but behind a directory that is not: private to each who may read it.
	hidden := nodemanager.Artifact{URI: "/hidden/open", Visibility: nodemanager.Public}
	opens("alice", hidden, "for all who get here", 1)
	refused("mallory", hidden)
	s.put("/hidden", "alice", 0o711)
	opens("mallory", hidden, "for all who get here", 1) // now it is, and alice's own copy was not it
	s.put("/hidden", "alice", 0o700)
	refused("mallory", hidden)
	// What was public is refused from the moment it no longer is, under whatever name.
	s.put("/home/open", "alice", 0o600)
	refused("mallory", open)
	for _, visibility := range []nodemanager.Visibility{"", nodemanager.Public} {
		if got, err := get("mallory", nodemanager.Artifact{URI: "/tmp/mine", SHA256: sum([]byte("for all")), Visibility: visibility}); err == nil || got != "" {
			t.Errorf("a hash opened %q", got)
		}
	}
}

// TestFileThatChangesWhileItIsReadIsRefused: it would be kept as the file that it was before.
func TestFileThatChangesWhileItIsReadIsRefused(t *testing.T) {
	s := newShared(map[string]string{"/f": "before"})
	s.put("/f", "alice", 0o644)
	l := newLocalizer(t, Config{})
	err := l.Localize(t.Context(), &changing{view: view{s, "alice"}}, "alice", t.TempDir(), []nodemanager.Artifact{{Name: "a", URI: "/f"}})
	if err == nil || !strings.Contains(err.Error(), "/f was changed while it was read") {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(l.config.Cache); len(left) > 0 {
		t.Errorf("kept: %v", left)
	}
}

// changing has another inode from the moment it is opened.
type changing struct {
	view
	opened bool
}

func (c *changing) Stat(ctx context.Context, name string) (Info, error) {
	info, err := c.view.Stat(ctx, name)
	if c.opened {
		info.ID++
	}
	return info, err
}

func (c *changing) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	c.opened = true
	return c.view.Open(ctx, name)
}
