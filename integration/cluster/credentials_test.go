package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/token"
)

// filesCommand has this binary use the filesystem in a container, as a program of a user's does.
const filesCommand = "files"

// filesMain does what its arguments say, "how what path" each, and prints a line of what happened. "outlive" reads a path until it has done
// so by three tokens.
func filesMain(args []string) int {
	if len(args) == 2 && args[0] == "outlive" {
		return outlive(args[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for i := 0; i+2 < len(args); i += 3 {
		how, what, path := args[i], args[i+1], args[i+2]
		c, err := filesClient(how)
		if err == nil {
			switch what {
			case "write":
				err = c.WriteFile(ctx, path, []byte("of "+c.User()), true)
			case "read":
				var text []byte
				if text, err = c.ReadFile(ctx, path); err == nil {
					fmt.Printf("%s ", text)
				}
			case "token":
				_, err = c.GetDelegationToken(ctx, c.User())
			}
		}
		fmt.Printf("%s %s %s: %v\n", how, what, path, err)
	}
	return 0
}

// filesClient finds the filesystem by the environment of a container. By TLS: the servers are on other machines.
func filesClient(how string) (*dfs.Client, error) {
	conf := &dfs.HadoopConf{Properties: map[string]string{}}
	user := ""
	if how == "as-root" {
		user = "root"
	}
	l, err := conf.LocateAs(os.Getenv("HOPS_FS")+"/", user)
	if err != nil {
		return nil, err
	}
	l.Config.Logger = slog.New(slog.DiscardHandler)
	if how == "without-token" {
		l.Config.Token = nil
	}
	if how != "plain" {
		trust, err := authority.TrustFile(os.Getenv("HOPS_AUTHORITY"))
		if err != nil {
			return nil, err
		}
		d := &security.Dialer{Trust: trust, Here: func(remote, local netip.Addr) bool { return remote == local }}
		l.Config.Dial = func(ctx context.Context, role, addr string) (net.Conn, error) {
			return d.Dial(ctx, addr, authority.Role(role))
		}
	}
	return dfs.New(l.Config)
}

// outlive is a program that runs longer than any of its tokens is good: one client, whose connections end now and then.
func outlive(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conf := &dfs.HadoopConf{Properties: map[string]string{}}
	l, err := conf.Locate(os.Getenv("HOPS_FS") + "/")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	refresh, last := l.Config.Refresh, ""
	l.Config.Refresh = func() *token.Token {
		t := refresh()
		if t != nil {
			last = string(t.Identifier)
		}
		return t
	}
	seen := map[string]bool{}
	for why := error(nil); len(seen) < 3; {
		if ctx.Err() != nil {
			fmt.Println(len(seen), "tokens were of use, then:", why)
			return 1
		}
		c, err := dfs.New(l.Config)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		if _, why = c.List(ctx, path); why == nil {
			seen[last] = true
		}
		c.Close()
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("three tokens")
	return 0
}

// A container that runs for longer than a token is good goes on: its tokens are renewed and replaced, and it finds the last one.
func TestAContainerOutlivesItsTokens(t *testing.T) {
	k := Start(t, Config{NodeManager: true, Apart: true, Properties: map[string]string{
		"dfs.namenode.delegation.token.max-lifetime": "1200", "dfs.namenode.delegation.token.renew-interval": "1000",
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 4*Patience) // of the whole test
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var job struct{ ID string }
	if err := k.Ask(ctx, "ann", http.MethodPost, "/api/v1/jobs", map[string]any{
		"name": "long", "argv": []string{self, filesCommand, "outlive", "/tmp"}, "resources": map[string]any{"memory": "256MiB"},
	}, &job); err != nil {
		t.Fatal(err)
	}
	k.Await("its end", func(ctx context.Context) error {
		var s struct{ State, FinalStatus, Diagnostics string }
		if err := k.Ask(ctx, "ann", http.MethodGet, "/api/v1/jobs/"+job.ID, nil, &s); err != nil {
			return err
		}
		if s.State != "FINISHED" {
			return fmt.Errorf("%+v", s)
		}
		if s.Diagnostics != "" {
			t.Errorf("%+v", s)
		}
		return nil
	})
}

// A container is known as its user to namenodes and datanodes on other machines: who tried what, and what happened.
func TestAContainerIsItsUserElsewhere(t *testing.T) {
	k := Start(t, Config{Datanodes: 2, NodeManager: true, Apart: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*Patience) // of the whole test
	defer cancel()
	super := k.Client("").FS()
	for _, name := range []string{"ann", "eve"} {
		k.MakeHome(ctx, super, name)
	}
	if err := k.FS("eve", k.Dialer("eve")).WriteFile(ctx, "/user/eve/f", []byte("eve's"), false); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	tries := []struct{ who, how, what, path, says string }{
		{"a container writes", "tls", "write", "/user/ann/f", "<nil>"},
		{"a container reads", "tls", "read", "/user/ann/f", "of ann tls read /user/ann/f: <nil>"},
		{"a container in plain writes", "plain", "write", "/user/ann/g", "<nil>"},
		{"a container in plain reads", "plain", "read", "/user/ann/f", "of ann plain read /user/ann/f: <nil>"},
		{"a container and another user's file", "tls", "read", "/user/eve/f", "Permission denied: user=ann"},
		{"a container asks for another token", "tls", "token", "-", "Delegation Token can be issued only with kerberos or web authentication"},
		{"a container leaves its token out", "without-token", "read", "/user/ann/f", "has shown no certificate and no token"},
		{"a container claims to be root", "as-root", "read", "/user/eve/f", "has shown no certificate and no token"},
	}
	argv := []string{self, filesCommand}
	for _, try := range tries {
		argv = append(argv, try.how, try.what, try.path)
	}
	script := fmt.Sprintf(`"$@" > %[1]s/said; cp $HADOOP_TOKEN_FILE_LOCATION %[1]s/tokens; chmod 600 %[1]s/tokens; touch %[1]s/done; while ! test -e %[1]s/end; do sleep 0.05; done`, out)
	var job struct{ ID string }
	if err := k.Ask(ctx, "ann", http.MethodPost, "/api/v1/jobs", map[string]any{
		"name": "files", "argv": append([]string{"sh", "-c", script, "sh"}, argv...), "resources": map[string]any{"memory": "256MiB"},
	}, &job); err != nil {
		t.Fatal(err)
	}
	state := func() (s struct{ State, Diagnostics string }) {
		if err := k.Ask(ctx, "ann", http.MethodGet, "/api/v1/jobs/"+job.ID, nil, &s); err != nil {
			t.Error(err)
		}
		return s
	}
	k.Await("what the container says", func(context.Context) error {
		_, err := os.Stat(filepath.Join(out, "done"))
		if err != nil {
			err = fmt.Errorf("%w: %+v", err, state())
		}
		return err
	})
	text, err := os.ReadFile(filepath.Join(out, "said"))
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(said) != len(tries) {
		t.Fatalf("%s", text)
	}
	for i, try := range tries {
		t.Run(try.who, func(t *testing.T) {
			if !strings.Contains(said[i], try.says) {
				t.Errorf("%s, want %s", said[i], try.says)
			}
		})
	}
	credentials, err := token.Load(filepath.Join(out, "tokens"))
	if err != nil {
		t.Fatal(err)
	}
	stolen, ok := credentials.For(k.namenodes()...)
	if !ok {
		t.Fatalf("no token for %v in %+v", k.namenodes(), credentials)
	}
	thief := func() error {
		d := k.Dialer("")
		c, err := dfs.New(dfs.Config{Namenodes: k.namenodes(), Token: &stolen, Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context, role, addr string) (net.Conn, error) {
			return d.Dial(ctx, addr, authority.Role(role))
		}})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.List(ctx, "/user/ann")
		return err
	}
	t.Run("a stolen token while its job runs", func(t *testing.T) {
		if err := thief(); err != nil {
			t.Errorf("%v: it is no less than its user's", err)
		}
	})
	if err := os.WriteFile(filepath.Join(out, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k.Await("the end of the job", func(context.Context) error {
		if s := state(); s.State != "FINISHED" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	t.Run("a stolen token after its job", func(t *testing.T) {
		k.Await("it is cancelled", func(context.Context) error {
			if err := thief(); err == nil || !strings.Contains(err.Error(), "can't be found in cache") {
				return fmt.Errorf("it is taken, or %w", err)
			}
			return nil
		})
	})
}
