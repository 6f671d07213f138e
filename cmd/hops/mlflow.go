package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/training/mlflow"
	"github.com/gohops/hops/training/store"
)

func mlflowCommand() *cli.Command {
	return &cli.Command{
		Name: "mlflow", Usage: "a tracking server for MLflow's clients over a project of the cluster",
		Subcommands: []*cli.Command{{
			Name: "serve", Usage: "serve MLflow's REST interface until interrupted",
			Description: "hops mlflow serve --project lab\n\nexport MLFLOW_TRACKING_URI=http://127.0.0.1:5000\n\n" +
				"What clients log lies in /Projects/PROJECT/MLflow, models in /Projects/PROJECT/Models; it is read and written as the user who\n" +
				"runs this. One server writes a project: a later one takes over, and this one ends.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "project", Usage: "`PROJECT` whose experiments these are", DefaultText: "the user's name"},
				&cli.StringFlag{Name: "listen", Value: "127.0.0.1:5000", Usage: "`HOST:PORT`; any but loopback needs --token-file"},
				&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the token that requests have to show (MLFLOW_TRACKING_TOKEN)"},
				&cli.StringSliceFlag{Name: "host", Usage: "further `NAME` by which this server may be called, as behind a proxy"},
				confFlag(), userFlag(),
			},
			Action: serveMLflow,
		}},
	}
}

// readTrackingToken reads a token of 16 to 4096 characters, on one line.
func readTrackingToken(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s can be read by others: chmod 600 %s", name, name)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4097))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 || len(token) > 4096 || strings.ContainsAny(token, "\r\n\t ") {
		return "", fmt.Errorf("%s holds no token: one line of 16 to 4096 characters without blanks", name)
	}
	return token, nil
}

func serveMLflow(c *cli.Context) error {
	listen := c.String("listen")
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fail(exitUsage, "--listen %q is not HOST:PORT", listen)
	}
	token := ""
	if name := c.String("token-file"); name != "" {
		if token, err = readTrackingToken(name); err != nil {
			return &statusError{exitUsage, err}
		}
	}
	if token == "" && !security.Loopback(host) {
		return fail(exitUsage, "--listen %s is open to other machines, who would act as you: give a --token-file", listen)
	}
	return withCluster(c, 0, 0, "takes no argument", func(cl *client.Client) error {
		project := c.String("project")
		if project == "" {
			project = cl.User()
		}
		logger := slog.New(slog.NewTextHandler(c.App.ErrWriter, nil))
		files := store.DFS(cl.FS())
		l, err := net.Listen("tcp", listen) // before a journal is taken away from another server
		if err != nil {
			return err
		}
		defer l.Close()
		journal, err := mlflow.OpenStore(c.Context, files, mlflow.Directory(project), logger)
		if err != nil {
			return err
		}
		handler, err := mlflow.NewServer(mlflow.Config{
			Files: files, Project: project, Searches: cl.Experiments().MLflow(project), Token: token, Hosts: c.StringSlice("host"), Log: logger,
		}, journal)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.App.ErrWriter, "MLFLOW_TRACKING_URI=http://%s (project %s, as %s)\n", l.Addr(), project, cl.User())
		return serveUntil(c.Context, l, handler, journal, trackingDoor(token != "", logger))
	})
}

// trackingConnections is how many are served at a time; the idlest makes room for a newcomer.
const trackingConnections = 512

// trackingDoor says who may connect: with a token everybody, who then has to show it; without one only the user who runs this, as whom
// all requests act, and root.
func trackingDoor(token bool, logger *slog.Logger) *security.Door {
	c := security.Config{Logger: logger}
	if token {
		c.Simple = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	}
	return security.NewDoor(c)
}

type ownConnection struct{}

// serveUntil serves until ctx ends or the journal cannot be written any more. Requests under way are answered.
func serveUntil(ctx context.Context, l net.Listener, handler *mlflow.Server, journal *mlflow.Store, door *security.Door) error {
	l = door.Guard(l, security.Doorway{Name: "MLflow", Limit: trackingConnections})
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if own, _ := r.Context().Value(ownConnection{}).(bool); !own && handler.Token == "" {
				http.Error(w, `{"error_code": "PERMISSION_DENIED", "message": "this server acts as the user who runs it, and without a token is for that user alone: start it with --token-file"}`, http.StatusForbidden)
				return
			}
			handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, ownConnection{}, door.OwnPeer(door.Peer(c)))
		},
	}
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	written := make(chan error, 1)
	go func() { written <- journal.Run(writing) }()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
	case err = <-written:
		return errors.Join(err, server.Close())
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if shut := server.Shutdown(after); shut != nil && err == nil {
		err = shut
	}
	stopWriting()
	return errors.Join(err, <-written)
}
