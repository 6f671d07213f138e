package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gohops/hops/client/dfs"
)

// shellRun runs scenarios with one shell against one cluster.
type shellRun struct {
	cluster *cluster
	shell   runner
	// api answers the @ lines, for which a shell has no command.
	api runner
	// dir holds the local files.
	dir string
}

// run returns the masked outcomes of every step of a scenario.
func (r *shellRun) run(ctx context.Context, sc scenario) ([]outcome, error) {
	m := &masker{cluster: r.cluster, home: "/t/" + sc.name, local: filepath.Join(r.dir, sc.name)}
	if err := r.prepare(ctx, m); err != nil {
		return nil, fmt.Errorf("%s: preparing %s: %w", r.cluster.name, sc.name, err)
	}
	var got []outcome
	for _, s := range sc.steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := r.cluster.died(); err != nil {
			return nil, err
		}
		args := make([]string, len(s.args))
		for i, a := range s.args {
			args[i] = m.expand(a)
		}
		user := s.user
		if user == "" {
			user = superuser()
		}
		var o outcome
		var err error
		switch {
		case s.api && isLocal(s.args[0]):
			o, err = localVerb(s.args[0], args[1])
		case s.api:
			o, err = r.api(ctx, r.cluster, user, "", append([]string{"@" + args[0]}, args[1:]...))
		default:
			o, err = r.shell(ctx, r.cluster, user, s.stdin, args)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", r.cluster.name, s.title(), err)
		}
		got = append(got, m.outcome(o, s.verb()))
	}
	return got, nil
}

// prepare makes what every scenario finds, as the head of testdata/fsshell.txt says.
func (r *shellRun) prepare(ctx context.Context, m *masker) error {
	fs, err := r.cluster.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	home := "/user/" + superuser()
	for _, d := range []string{m.home, home + "/.Trash"} {
		_, err := fs.Delete(ctx, d, true)
		if err != nil && snapshotted(err) {
			if err = dropSnapshots(ctx, fs, d); err == nil {
				_, err = fs.Delete(ctx, d, true)
			}
		}
		if err != nil {
			return err
		}
	}
	for _, d := range []string{m.home, home} {
		if err := fs.Mkdirs(ctx, d, 0o755, true); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(m.local); err != nil {
		return err
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte("zipped hello\n"))
	_ = z.Close()
	var lines strings.Builder
	for i := 1; i <= 27; i++ {
		fmt.Fprintf(&lines, "line %02d %s\n", i, strings.Repeat("x", 88))
	}
	big := make([]byte, 5000)
	for i := range big {
		big[i] = 'a' + byte((i*7+i/100)%26)
		if i%100 == 99 {
			big[i] = '\n'
		}
	}
	for _, d := range []string{"out", "tree/sub"} {
		if err := os.MkdirAll(filepath.Join(m.local, d), 0o755); err != nil {
			return err
		}
	}
	for name, data := range map[string][]byte{
		"hello.txt": []byte("hello world\n"), "empty": nil, "lines.txt": []byte(lines.String()), "big.bin": big, "hello.gz": zipped.Bytes(),
		"tree/a": []byte("A\n"), "tree/b": []byte("BB\n"), "tree/sub/c": []byte("CCC\n"), "tree/sub/e": nil,
	} {
		if err := os.WriteFile(filepath.Join(m.local, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// snapshotted reports whether a folder of an earlier run cannot be removed because it has snapshots.
func snapshotted(err error) bool {
	return strings.Contains(err.Error(), "snapshottable")
}

// dropSnapshots removes the snapshots of the directories in dir.
func dropSnapshots(ctx context.Context, fs *dfs.Client, dir string) error {
	list, err := fs.List(ctx, dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		snapshots, err := fs.List(ctx, dir+"/"+e.Name+"/.snapshot")
		if err != nil {
			continue // not a directory with snapshots
		}
		for _, s := range snapshots {
			if err := fs.DeleteSnapshot(ctx, dir+"/"+e.Name, s.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func isLocal(verb string) bool { return verb == "lcat" || verb == "lls" || verb == "lperm" }

// localVerb looks at the local files that a shell wrote.
func localVerb(verb, path string) (outcome, error) {
	var out strings.Builder
	switch verb {
	case "lcat":
		data, err := os.ReadFile(path)
		if err != nil {
			return outcome{1, "", err.Error() + "\n"}, nil
		}
		out.Write(data)
	case "lls":
		if err := filepath.WalkDir(path, func(p string, _ os.DirEntry, err error) error {
			fmt.Fprintln(&out, p)
			return err
		}); err != nil {
			return outcome{1, "", err.Error() + "\n"}, nil
		}
	case "lperm":
		info, err := os.Stat(path)
		if err != nil {
			return outcome{1, "", err.Error() + "\n"}, nil
		}
		out.WriteString(strings.TrimPrefix(info.Mode().Perm().String(), "-") + "\n")
	}
	return outcome{stdout: out.String()}, nil
}

// difference describes how two outcomes differ, or is empty.
func difference(want, got outcome) string {
	var b strings.Builder
	if want.status != got.status {
		fmt.Fprintf(&b, "  exit %d, want %d\n", got.status, want.status)
	}
	for _, stream := range []struct{ name, want, got string }{{"out", want.stdout, got.stdout}, {"err", want.stderr, got.stderr}} {
		if stream.want != stream.got {
			fmt.Fprintf(&b, "  want %s %s\n   got %s %s\n", stream.name, shorten(stream.want), stream.name, shorten(stream.got))
		}
	}
	return b.String()
}

func shorten(s string) string {
	q := strconv.Quote(s)
	if len(q) > 900 {
		q = q[:600] + " ... " + q[len(q)-250:]
	}
	return q
}
