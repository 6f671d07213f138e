package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/status"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// Servers on machines of their own speak TLS with each other, and with clients: who tried what, and what happened.
func TestServersOnOtherMachines(t *testing.T) {
	k := Start(t, Config{Datanodes: 2, Apart: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*Patience) // of the whole test
	defer cancel()
	super := k.Client("").FS()
	k.MakeHome(ctx, super, "ann")
	ann := k.FS("ann", k.Dialer("ann"))
	data := bytes.Repeat([]byte("four score and seven years ago\n"), 100_000)
	t.Run("a user's certificate: writes through two datanodes and reads", func(t *testing.T) {
		if err := ann.WriteFile(ctx, "/user/ann/a", data, false); err != nil {
			t.Fatal(err)
		}
		if got, err := ann.ReadFile(ctx, "/user/ann/a"); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	t.Run("a file that is being written has a length", func(t *testing.T) {
		w, err := ann.Create(ctx, "/user/ann/open", dfs.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		if _, err = w.Write([]byte("half")); err == nil {
			err = w.Hflush(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ann.ReadFile(ctx, "/user/ann/open"); err != nil || string(got) != "half" {
			t.Errorf("%q, %v", got, err)
		}
	})
	plain := &security.Dialer{Plain: true}
	for name, c := range map[string]struct {
		user   string
		dialer *security.Dialer
		says   string
	}{
		"IPC by TLS without a certificate":        {"ann", k.Dialer(""), "has shown no certificate and no token"},
		"IPC by TLS, another name":                {"bob", k.Dialer("ann"), "user ann may not act as bob"},
		"IPC by TLS, the superuser's name":        {super.User(), k.Dialer("ann"), "user ann may not act as " + super.User()},
		"IPC in plain":                            {"ann", plain, "connect by TLS, prove a token or Kerberos"},
		"IPC in plain, the superuser's name":      {super.User(), plain, "connect by TLS, prove a token or Kerberos"},
		"IPC by TLS, the cluster is not known":    {"ann", &security.Dialer{Here: k.here()}, "run `hops login`"},
		"IPC by TLS, a user who may not read it":  {"eve", k.Dialer("eve"), "Permission denied"},
		"IPC by TLS, the certificate's user acts": {"ann", k.Dialer("ann"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := k.FS(c.user, c.dialer).List(ctx, "/user/ann")
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
	datanode := k.Server("dn1").Datanode
	read := func(c net.Conn, token *hadooppb.TokenProto) string {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(Patience))
		none := &hadooppb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: new("HDFS_BLOCK_TOKEN"), Service: new("")}
		if token == nil {
			token = none
		}
		pool := "BP"
		header := &hadooppb.ClientOperationHeaderProto{ClientName: new("test"), BaseHeader: &hadooppb.BaseHeaderProto{
			Block: &hadooppb.ExtendedBlockProto{PoolId: &pool, BlockId: new(uint64(1)), GenerationStamp: new(uint64(1)), NumBytes: new(uint64(1))}, Token: token,
		}}
		if err := dtp.WriteOp(c, dtp.OpReadBlock, &hadooppb.OpReadBlockProto{Header: header, Offset: new(uint64(0)), Len: new(uint64(1))}); err != nil {
			return err.Error()
		}
		answer, err := dtp.ReadResponse(bufio.NewReader(c))
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(answer.GetStatus(), " ", answer.GetMessage())
	}
	t.Run("data transfer in plain", func(t *testing.T) {
		c, err := net.Dial("tcp", datanode.Transfer)
		if err != nil {
			t.Fatal(err)
		}
		if says := read(c, nil); !strings.Contains(says, "ERROR") || !strings.Contains(says, "connect by TLS") {
			t.Error(says)
		}
	})
	t.Run("data transfer by TLS without a block token", func(t *testing.T) {
		c, err := k.Dialer("ann").Dial(ctx, datanode.Transfer, authority.Datanode)
		if err != nil {
			t.Fatal(err)
		}
		if says := read(c, nil); !strings.Contains(says, "ERROR_ACCESS_TOKEN") || !strings.Contains(says, "the request carries none") {
			t.Error(says)
		}
	})
	get := func(t *testing.T, client *http.Client, url string) (*http.Response, string) {
		t.Helper()
		answer, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(text)
	}
	web := k.shared.Namenodes[0].HTTP
	t.Run("WebHDFS in plain", func(t *testing.T) {
		answer, text := get(t, http.DefaultClient, "http://"+web+"/webhdfs/v1/?op=LISTSTATUS&user.name=ann")
		var problem struct{ Type, Detail string }
		if err := json.Unmarshal([]byte(text), &problem); err != nil || answer.StatusCode != 403 || problem.Type != "urn:hops:https-required" || !strings.Contains(problem.Detail, "https://"+web) {
			t.Errorf("%d %s", answer.StatusCode, text)
		}
	})
	t.Run("WebHDFS by TLS follows a redirect to a datanode by TLS", func(t *testing.T) {
		transport := k.Dialer("ann").Transport()
		defer transport.CloseIdleConnections()
		seen := ""
		client := &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, _ []*http.Request) error { seen = r.URL.Scheme; return nil }}
		answer, text := get(t, client, "https://"+web+"/webhdfs/v1/user/ann/a?op=OPEN")
		if answer.StatusCode != 200 || text != string(data) || seen != "https" {
			t.Errorf("%d, %d bytes, redirected to %s", answer.StatusCode, len(text), seen)
		}
	})
}

// In a trusted network clients are believed, and every server says so.
func TestATrustedNetwork(t *testing.T) {
	k := Start(t, Config{Apart: true, Simple: []string{"127.0.0.0/8"}})
	ctx, cancel := context.WithTimeout(t.Context(), 4*Patience) // of the whole test
	defer cancel()
	t.Cleanup(func() { status.Notices = nil })
	plain := &security.Dialer{Plain: true}
	super := k.FS(k.self(), plain)
	k.MakeHome(ctx, super, "ann")
	ann := k.FS("ann", plain)
	if err := ann.WriteFile(ctx, "/user/ann/a", []byte("hello"), false); err != nil {
		t.Fatal(err)
	}
	if got, err := ann.ReadFile(ctx, "/user/ann/a"); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := k.FS("bob", plain).ReadFile(ctx, "/user/ann/a"); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("another name: %v", err)
	}
	if _, err := k.FS("ann", k.Dialer("bob")).List(ctx, "/user/ann"); err == nil || !strings.Contains(err.Error(), "user bob may not act as ann") {
		t.Errorf("a certificate of somebody else: %v", err)
	}
	answer, err := http.Get("http://" + k.shared.Namenodes[0].HTTP + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var health status.Health
	if err := json.NewDecoder(answer.Body).Decode(&health); err != nil || len(health.Notices) != 1 || !strings.Contains(health.Notices[0], "CLIENTS FROM 127.0.0.0/8 ARE BELIEVED") {
		t.Errorf("%+v, %v", health, err)
	}
	k.log.mu.Lock()
	defer k.log.mu.Unlock()
	if !strings.Contains(k.log.text.String(), "ARE BELIEVED WITHOUT PROOF") {
		t.Error("the log says nothing")
	}
}
