package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/urfave/cli/v2"
	"golang.org/x/oauth2"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
)

func loginCommand() *cli.Command {
	return &cli.Command{
		Name:      "login",
		Usage:     "become a user of a cluster on a machine that is none of its servers",
		ArgsUsage: "[HOST:PORT]",
		Description: "With the file that `hops user token` wrote: hops login --token FILE.\n" +
			"With an identity provider: hops login HOST:PORT --fingerprint sha256:… and, later on, hops login.\n" +
			"HOST:PORT is the HTTP port of a namenode. The login is kept in ~/.hops/login ($HOPS_LOGIN), of mode 0600.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "token", Usage: "`FILE` with a login or a token; - is standard input"},
			&cli.StringFlag{Name: "fingerprint", Usage: "sha256:`HEX` of the certificate of the cluster's authority, when this is the first login there"},
		},
		Action: runLogin,
	}
}

func runLogin(c *cli.Context) error {
	if c.NArg() > 1 {
		return fail(exitUsage, "login: give one HOST:PORT")
	}
	path, err := login.Path()
	if err != nil {
		return err
	}
	var token string
	var f *login.File
	if from := c.String("token"); from != "" {
		text, err := readToken(c, from)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(text, []byte("{")) {
			if f, err = login.Parse(text); err != nil {
				return fail(exitUsage, "%s: %w", from, err)
			}
			if f.Token == "" {
				return fail(exitUsage, "%s has no token", from)
			}
			if c.NArg() > 0 || c.String("fingerprint") != "" {
				return fail(exitUsage, "%s says where the cluster is: give neither HOST:PORT nor --fingerprint", from)
			}
			return finishLogin(c, f, path)
		}
		token = string(text)
	}
	if f, err = firstContact(c, path); err != nil {
		return err
	}
	f.Token = ""
	var cluster struct {
		login.File
		Issuer   string `json:"issuer"`
		ClientID string `json:"client_id"`
		Groups   bool   `json:"ask_groups"`
	}
	if err := loggedIn(f).ask(c.Context, http.MethodGet, "/api/v1/login", nil, &cluster); err != nil {
		return err
	}
	f = &cluster.File
	if token == "" {
		if cluster.Issuer == "" {
			return fail(exitUsage, "cluster %s has no identity provider: ask its operator for a token, and give it with --token FILE", f.Cluster)
		}
		identity, err := authorize(c.Context, cluster.Issuer, cluster.ClientID, cluster.Groups, c.App.ErrWriter)
		if err != nil {
			return err
		}
		if _, err := f.Marshal(); err != nil {
			return err
		}
		given := &login.File{}
		if err := loggedIn(f).ask(c.Context, http.MethodPost, "/api/v1/login", map[string]string{"id_token": identity}, given); err != nil {
			return err
		}
		return finishLogin(c, given, path)
	}
	f.Token = token
	return finishLogin(c, f, path)
}

// readToken reads a token or a login.
func readToken(c *cli.Context, from string) ([]byte, error) {
	in := c.App.Reader
	if from != "-" {
		file, err := os.Open(from)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return nil, fail(exitUsage, "%s is empty", from)
	}
	return text, nil
}

// firstContact is a login without a token: of the cluster that was named and whose authority's fingerprint is given, else of the
// cluster that this machine has a login of.
func firstContact(c *cli.Context, path string) (*login.File, error) {
	addr := c.Args().First()
	if addr != "" {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, fail(exitUsage, "%q is not HOST:PORT: give the address of a namenode's HTTP port", addr)
		}
	}
	if text := c.String("fingerprint"); text != "" {
		fingerprint, err := parseFingerprint(text)
		if err != nil {
			return nil, fail(exitUsage, "%w", err)
		}
		if addr == "" {
			return nil, fail(exitUsage, "login: --fingerprint is of the authority of the cluster at HOST:PORT: give that, too")
		}
		f, err := login.First(c.Context, addr, fingerprint)
		if errors.Is(err, authority.ErrForeign) || errors.Is(err, authority.ErrTime) || errors.Is(err, authority.ErrRole) {
			return nil, fail(exitDenied, "%w", err)
		}
		if err != nil {
			return nil, fail(exitUnreachable, "%w", err)
		}
		return f, nil
	}
	f, err := login.Load(path)
	if errors.Is(err, login.ErrNone) {
		return nil, fail(exitUsage, "this machine knows no cluster yet: give the file that `hops user token` wrote (--token FILE), "+
			"or HOST:PORT and --fingerprint sha256:… of the cluster's authority, which its operator knows")
	}
	if err != nil {
		return nil, err
	}
	if addr != "" {
		f.Namenodes = []login.Namenode{{HTTP: addr, IPC: addr}}
	}
	return f, nil
}

// parseFingerprint reads sha256:HEX, with or without colons between the bytes, as openssl prints them.
func parseFingerprint(text string) (f authority.Fingerprint, err error) {
	digits, ok := strings.CutPrefix(strings.ToLower(text), "sha256:")
	b, err := hex.DecodeString(strings.ReplaceAll(digits, ":", ""))
	if !ok || err != nil || len(b) != len(f) {
		return f, fmt.Errorf("fingerprint %q: want sha256: and %d bytes in hexadecimal", text, len(f))
	}
	copy(f[:], b)
	return f, nil
}

// authorize has the user agree at the identity provider, on whatever device they like (RFC 8628), and returns the provider's ID
// token.
func authorize(ctx context.Context, issuer, client string, groups bool, say io.Writer) (string, error) {
	ctx = oidc.ClientContext(ctx, &http.Client{Timeout: 30 * time.Second})
	provider, err := oidc.NewProvider(ctx, issuer)
	if err != nil {
		return "", fail(exitUnreachable, "the identity provider %s does not describe itself: %w", issuer, err)
	}
	o := oauth2.Config{ClientID: client, Endpoint: provider.Endpoint(), Scopes: []string{oidc.ScopeOpenID, "profile"}}
	if groups {
		o.Scopes = append(o.Scopes, "groups")
	}
	if o.Endpoint.DeviceAuthURL == "" {
		return "", fail(exitFailed, "the identity provider %s has no device flow (RFC 8628), which `hops login` needs: ask the cluster's operator for a token", issuer)
	}
	device, err := o.DeviceAuth(ctx)
	if err != nil {
		return "", fail(exitFailed, "the identity provider %s: %w", issuer, err)
	}
	if device.VerificationURIComplete != "" {
		fmt.Fprintf(say, "Open %s in a browser", device.VerificationURIComplete)
	} else {
		fmt.Fprintf(say, "Open %s in a browser", device.VerificationURI)
	}
	fmt.Fprintf(say, ", and agree if it shows the code %s\n", device.UserCode)
	token, err := o.DeviceAccessToken(ctx, device)
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return "", fail(exitDenied, "the identity provider %s: %s", issuer, strings.TrimSpace(refused.ErrorCode+" "+refused.ErrorDescription))
	}
	if err != nil {
		return "", fail(exitFailed, "the identity provider %s: %w", issuer, err)
	}
	identity, ok := token.Extra("id_token").(string)
	if !ok {
		return "", fail(exitFailed, "the identity provider %s gave no ID token: is %s a client of OpenID Connect there?", issuer, client)
	}
	return identity, nil
}

// finishLogin keeps a login that the cluster knows.
func finishLogin(c *cli.Context, f *login.File, path string) error {
	if _, err := f.Marshal(); err != nil {
		return err
	}
	var me whoami
	if err := loggedIn(f).ask(c.Context, http.MethodGet, "/api/v1/whoami", nil, &me); err != nil {
		return err
	}
	if me.ProvedBy != "token" {
		return fail(exitDenied, "the cluster takes no notice of the token")
	}
	f.User, f.ID, f.Expires = me.User, me.Token, me.Expires
	if err := f.Write(path); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, me.String())
	return nil
}
