package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// command runs a program to its end and returns what it printed; a status other than zero is an error.
func command(ctx context.Context, stdin []byte, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "TZ=UTC")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := output(cmd)
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", filepath.Base(argv[0]), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// curlRow does with curl what WebHDFS's documentation shows.
func (s *suite) curlRow(ctx context.Context, c *cluster) error {
	say("curl on WebHDFS")
	row := &row{name: "curl", title: "curl on WebHDFS"}
	s.rows = append(s.rows, row)
	base := "http://" + c.http[0] + "/webhdfs/v1/curl"
	as := func(query, user string) string { return "?op=" + query + "&user.name=" + user }
	root := superuser()
	body := filepath.Join(s.dir, "curl.body")
	data := strings.Repeat("0123456789abcdef", 20000) // 320,000 bytes
	type step struct {
		name  string
		args  []string
		stdin string
		want  string // a part of the output; the status follows the body
	}
	for _, st := range []step{
		{"DELETE of what may be left", []string{"-X", "DELETE", base + as("DELETE&recursive=true", root)}, "", "boolean"},
		{"MKDIRS", []string{"-X", "PUT", base + "/d" + as("MKDIRS&permission=1777", root)}, "", `{"boolean":true}200`},
		{"CREATE, redirected", []string{"-L", "-X", "PUT", "-T", body, base + "/d/f" + as("CREATE", root)}, data, "201"},
		{"OPEN", []string{"-L", base + "/d/f" + as("OPEN", root)}, "", data + "200"},
		{"OPEN a part", []string{"-L", base + "/d/f" + as("OPEN&offset=16&length=4", root)}, "", "0123200"},
		{"GETFILESTATUS", []string{base + "/d/f" + as("GETFILESTATUS", root)}, "", `"length":320000`},
		{"LISTSTATUS", []string{base + "/d" + as("LISTSTATUS", root)}, "", `"pathSuffix":"f"`},
		{"GETCONTENTSUMMARY", []string{base + as("GETCONTENTSUMMARY", root)}, "", `"fileCount":1`},
		{"GETFILECHECKSUM", []string{"-L", base + "/d/f" + as("GETFILECHECKSUM", root)}, "", `"algorithm":"MD5-of-0MD5-of-512CRC32C"`},
		{"GETHOMEDIRECTORY", []string{base + as("GETHOMEDIRECTORY", "alice")}, "", `{"Path":"/user/alice"}200`},
		{"CREATE as another user", []string{"-L", "-X", "PUT", "-T", body, base + "/d/alice" + as("CREATE", "alice")}, "hers\n", "201"},
		{"CREATE without the right", []string{"-L", "-X", "PUT", "-T", body, base + "-no" + as("CREATE", "alice")}, "x", `"exception":"AccessControlException"`},
		{"APPEND", []string{"-L", "-X", "POST", "--data-binary", "@" + body, base + "/d/alice" + as("APPEND", "alice")}, "more\n", "200"},
		{"OPEN what was appended", []string{"-L", base + "/d/alice" + as("OPEN", "bob")}, "", "hers\nmore\n200"},
		{"SETPERMISSION", []string{"-X", "PUT", base + "/d/alice" + as("SETPERMISSION&permission=600", "alice")}, "", "200"},
		{"OPEN without the right", []string{"-L", base + "/d/alice" + as("OPEN", "bob")}, "", `"exception":"AccessControlException"`},
		{"SETOWNER", []string{"-X", "PUT", base + "/d/alice" + as("SETOWNER&owner=bob", root)}, "", "200"},
		{"SETREPLICATION", []string{"-X", "PUT", base + "/d/f" + as("SETREPLICATION&replication=2", root)}, "", `{"boolean":true}200`},
		{"SETTIMES", []string{"-X", "PUT", base + "/d/f" + as("SETTIMES&modificationtime=1000000000000", root)}, "", "200"},
		{"RENAME", []string{"-X", "PUT", base + "/d/f" + as("RENAME&destination=/curl/g", root)}, "", `{"boolean":true}200`},
		{"a file that is not there", []string{base + "/d/f" + as("GETFILESTATUS", root)}, "", `"exception":"FileNotFoundException"`},
		{"an operation that is none", []string{base + as("NOSUCH", root)}, "", `"exception":"IllegalArgumentException"`},
		{"nobody in particular", []string{base + "?op=GETFILESTATUS"}, "", `"type":"DIRECTORY"`},
		{"DELETE", []string{"-X", "DELETE", base + as("DELETE&recursive=true", root)}, "", `{"boolean":true}200`},
	} {
		// A file, because curl sends a body again after a redirect.
		if err := os.WriteFile(body, []byte(st.stdin), 0o644); err != nil {
			return err
		}
		out, err := command(ctx, nil, append([]string{"curl", "-sS", "-w", "%{http_code}"}, st.args...)...)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			row.add(st.name, failed, "  "+err.Error()+"\n")
		case !strings.Contains(string(out), st.want):
			row.add(st.name, failed, fmt.Sprintf("  got  %s\n  want %s\n", shorten(string(out)), shorten(st.want)))
		default:
			row.add(st.name, passed, "")
		}
	}
	return nil
}

// python makes a virtual environment with what the cases need.
func (c *cache) python() (string, error) {
	if err := need("python3", "make compat needs Python 3 with venv (Debian: apt-get install python3 python3-venv)"); err != nil {
		return "", err
	}
	requirements := filepath.Join(c.source, "python", "requirements.txt")
	text, err := os.ReadFile(requirements)
	if err != nil {
		return "", err
	}
	dir, err := c.once("python", string(text), func(dir string) error {
		say("fetching fsspec and hdfs-native from PyPI, once")
		if _, err := tool(c.source, nil, "python3", "-m", "venv", dir); err != nil {
			return fmt.Errorf("%w (Debian: apt-get install python3-venv)", err)
		}
		_, err := tool(c.source, nil, filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", "-r", requirements)
		return err
	})
	return filepath.Join(dir, "bin", "python"), err
}

func (s *suite) fsspec(c *cluster, args ...string) ([]string, error) {
	python, err := s.cache.python()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(c.http[0])
	if err != nil {
		return nil, err
	}
	return append([]string{python, filepath.Join(s.cache.source, "python", "fsspec_cases.py"), host, port, superuser()}, args...), nil
}

// fsspecRow runs the cases of fsspec.
func (s *suite) fsspecRow(ctx context.Context, c *cluster) error {
	argv, err := s.fsspec(c, "cases")
	if err != nil {
		return err
	}
	say("fsspec on WebHDFS")
	row := &row{name: "fsspec", title: "fsspec (Python) on WebHDFS"}
	s.rows = append(s.rows, row)
	out, err := command(ctx, nil, argv...)
	if err != nil {
		return err
	}
	row.addLines(string(out))
	return nil
}

// acrossRow writes a file with each client, reads it with each, and compares bytes and checksums; those of the stock HDFS
// are the measure of the checksums.
func (s *suite) acrossRow(ctx context.Context, stock, ours *cluster, fsShell runner) error {
	say("files across clients")
	row := &row{name: "across", title: "bytes and checksums across clients"}
	s.rows = append(s.rows, row)
	if err := s.across(ctx, row, stock, ours, fsShell, "/across", ""); err != nil {
		return err
	}
	return s.acrossCoded(ctx, row, stock, ours, fsShell)
}

// across has each client write a file to a directory of ours and all read it. The checksum is that of the file in the same directory of the stock HDFS.
func (s *suite) across(ctx context.Context, row *row, stock, ours *cluster, fsShell runner, dir, label string) error {
	data := make([]byte, 3_000_007)
	for i := range data {
		data[i] = byte(i*i>>7 + i)
	}
	local := filepath.Join(s.dir, "across.bin")
	if err := os.WriteFile(local, data, 0o644); err != nil {
		return err
	}
	fs, err := ours.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	shell := func(run runner, c *cluster, args ...string) ([]byte, error) {
		o, err := run(ctx, c, superuser(), "", args)
		if err == nil && o.status != 0 {
			err = fmt.Errorf("exit %d: %s", o.status, strings.TrimSpace(o.stderr))
		}
		return []byte(o.stdout), err
	}
	web := func(path, op string) string {
		return "http://" + ours.http[0] + "/webhdfs/v1" + path + "?op=" + op + "&user.name=" + superuser()
	}
	python := func(stdin []byte, args ...string) ([]byte, error) {
		argv, err := s.fsspec(ours, args...)
		if err != nil {
			return nil, err
		}
		return command(ctx, stdin, argv...)
	}
	hops := hopsFS(s.binary)
	if err := fs.Mkdirs(ctx, dir, 0o755, true); err != nil {
		return err
	}
	if _, err := shell(fsShell, stock, "-mkdir", "-p", dir); err != nil {
		return err
	}
	if _, err := shell(fsShell, stock, "-put", "-f", local, dir+"/across.bin"); err != nil {
		return err
	}
	sum, err := shell(fsShell, stock, "-checksum", dir+"/across.bin")
	if err != nil {
		return err
	}
	_, want, _ := strings.Cut(strings.TrimSpace(string(sum)), "\t")
	type client struct {
		name  string
		write func(path string) error
		read  func(path string) ([]byte, error)
		sum   func(path string) (string, error)
		// appends: it writes a file by appending to it, which a file with an erasure coding policy refuses, HDFS's too.
		appends bool
	}
	shellSum := func(run runner) func(path string) (string, error) {
		return func(path string) (string, error) {
			out, err := shell(run, ours, "-checksum", path)
			_, rest, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
			return rest, err
		}
	}
	clients := []client{
		{
			"FsShell",
			func(p string) error { _, err := shell(fsShell, ours, "-put", local, p); return err },
			func(p string) ([]byte, error) { return s.getBy(fsShell, ours, p) },
			shellSum(fsShell), false,
		},
		{
			"hops fs",
			func(p string) error { _, err := shell(hops, ours, "-put", local, p); return err },
			func(p string) ([]byte, error) { return s.getBy(hops, ours, p) },
			shellSum(hops), false,
		},
		{
			"Go client",
			func(p string) error { return fs.WriteFile(ctx, p, data, false) },
			func(p string) ([]byte, error) { return readAll(ctx, fs, p) },
			func(p string) (string, error) {
				c, err := fs.Checksum(ctx, p)
				return c.Algorithm + "\t" + hex.EncodeToString(c.Bytes), err
			}, false,
		},
		{
			"curl",
			func(p string) error {
				_, err := command(ctx, nil, "curl", "-sSf", "-L", "-X", "PUT", "-T", local, web(p, "CREATE"))
				return err
			},
			func(p string) ([]byte, error) { return command(ctx, nil, "curl", "-sSf", "-L", web(p, "OPEN")) },
			func(p string) (string, error) {
				out, err := command(ctx, nil, "curl", "-sSf", "-L", web(p, "GETFILECHECKSUM"))
				if err != nil {
					return "", err
				}
				var answer struct {
					FileChecksum struct {
						Algorithm, Bytes string
						Length           int
					}
				}
				if err := json.Unmarshal(out, &answer); err != nil {
					return "", err
				}
				sum := answer.FileChecksum
				return sum.Algorithm + "\t" + sum.Bytes[:min(2*sum.Length, len(sum.Bytes))], nil
			}, false,
		},
		{
			"fsspec",
			func(p string) error { _, err := python(data, "write", p); return err },
			func(p string) ([]byte, error) { return python(nil, "read", p) },
			nil, true,
		},
	}
	for i, writer := range clients {
		if label != "" && writer.appends {
			continue
		}
		path := fmt.Sprintf("%s/%d", dir, i)
		err := writer.write(path)
		for _, reader := range clients {
			name := fmt.Sprintf("%s%s reads what %s wrote", label, reader.name, writer.name)
			var got []byte
			e := err
			if e == nil {
				got, e = reader.read(path)
			}
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case e != nil:
				row.add(name, failed, "  "+e.Error()+"\n")
			case !bytes.Equal(got, data):
				row.add(name, failed, fmt.Sprintf("  %d bytes, want %d, the first difference at %d\n", len(got), len(data), firstDifference(got, data)))
			default:
				row.add(name, passed, "")
			}
			if reader.sum == nil {
				continue
			}
			name = fmt.Sprintf("%s%s's checksum of what %s wrote", label, reader.name, writer.name)
			var sum string
			if e = err; e == nil {
				sum, e = reader.sum(path)
			}
			switch {
			case e != nil && saysUnsupported(e.Error()):
				row.add(name, unsupported, "  "+shorten(e.Error())+"\n")
			case e != nil:
				row.add(name, failed, "  "+e.Error()+"\n")
			case sum != want:
				row.add(name, failed, fmt.Sprintf("  got  %s\n  want %s\n", sum, want))
			default:
				row.add(name, passed, "")
			}
		}
	}
	return nil
}

// getBy fetches a file with a shell: its standard output is text.
func (s *suite) getBy(run runner, c *cluster, path string) ([]byte, error) {
	local := filepath.Join(s.dir, "got.bin")
	if err := os.Remove(local); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	o, err := run(context.Background(), c, superuser(), "", []string{"-get", path, local})
	if err != nil {
		return nil, err
	}
	if o.status != 0 {
		return nil, fmt.Errorf("exit %d: %s", o.status, strings.TrimSpace(o.stderr))
	}
	return os.ReadFile(local)
}

func readAll(ctx context.Context, fs *dfs.Client, path string) ([]byte, error) {
	r, err := fs.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
