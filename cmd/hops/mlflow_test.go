package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/training/mlflow"
	"github.com/gohops/hops/training/store/storetest"
)

// Without a token the server acts as who runs it for nobody else, also of the users of its machine.
func TestTrackingServerIsForItsUser(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	const token = "0123456789abcdef"
	for _, c := range []struct {
		name         string
		token, shown string
		owner        uint32
		want         int
	}{
		{"its user", "", "", 0, 200},
		{"another user", "", "", 4711, 403},
		{"another user, with a token that nobody asked for", "", token, 4711, 403},
		{"another user, with the token", token, token, 4711, 200},
		{"its user, without the token", token, "", 0, 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := storetest.New()
			journal, err := mlflow.OpenStore(t.Context(), files, mlflow.Directory("lab"), log)
			if err != nil {
				t.Fatal(err)
			}
			handler, err := mlflow.NewServer(mlflow.Config{Files: files, Project: "lab", Token: c.token, Log: log}, journal)
			if err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			door := security.NewDoor(security.Config{Logger: log, Owner: func(security.ConnAddrs) (uint32, error) { return c.owner, nil }})
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- serveUntil(ctx, l, handler, journal, door) }()
			r, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+"/api/2.0/mlflow/experiments/get?experiment_id=0", nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.shown != "" {
				r.Header.Set("Authorization", "Bearer "+c.shown)
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if err != nil || answer.StatusCode != c.want {
				t.Errorf("%d %s, %v; want %d", answer.StatusCode, text, err, c.want)
			}
			if c.want == 403 && !strings.Contains(string(text), "--token-file") {
				t.Errorf("%s does not say what to do", text)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// With a token the server is for other machines as well.
func TestTrackingDoorLetsOtherMachinesIn(t *testing.T) {
	remote := security.ConnAddrs{Local: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5000}, Remote: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 4}}
	log := slog.New(slog.DiscardHandler)
	if p := trackingDoor(true, log).PeerAt(remote); p.Refused() != nil || trackingDoor(true, log).OwnPeer(p) {
		t.Errorf("with a token: %v", p.Refused())
	}
	if p := trackingDoor(false, log).PeerAt(remote); p.Refused() == nil {
		t.Error("without a token another machine may come")
	}
}
