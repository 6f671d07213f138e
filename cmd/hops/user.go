package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/login"
)

// userToken is a token as a namenode lists it.
type userToken struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Groups  []string  `json:"groups,omitempty"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"`
	Revoked time.Time `json:"revoked,omitzero"`
	// Certificate: it is a certificate, and no token.
	Certificate bool `json:"certificate,omitempty"`
}

func userCommand() *cli.Command {
	return &cli.Command{
		Name:        "user",
		Usage:       "tokens and certificates by which users show who they are from other machines: token, certificate, tokens, revoke",
		Description: "docs/how-to/users.md shows how users of other machines get in.",
		Subcommands: []*cli.Command{
			{
				Name: "token", Usage: "make a login for NAME: addresses, certificates and a token in one file; a superuser for anybody, everybody for themselves",
				ArgsUsage: "[NAME]",
				Flags: []cli.Flag{
					&cli.DurationFlag{Name: "life", Value: 12 * time.Hour, Usage: "how long it is good, up to 720h"},
					&cli.StringFlag{Name: "groups", Usage: "`GROUPS` of the user with commas, in place of those that servers find"},
					&cli.StringFlag{Name: "out", Usage: "write to `FILE`, of mode 0600, in place of standard output"},
					configFlag(), confFlag(), userFlag(),
				},
				Action: makeUserToken,
			},
			{
				Name: "certificate", Usage: "make a client certificate for NAME, with a key that stays here, for curl and programs of one's own; a superuser for anybody, everybody for themselves",
				ArgsUsage: "[NAME]",
				Flags: []cli.Flag{
					&cli.DurationFlag{Name: "life", Value: 12 * time.Hour, Usage: "how long it is good, up to 720h; it ends with the cluster's authority (hops cluster rotate), too"},
					&cli.StringFlag{Name: "out", Required: true, Usage: "write certificate and key to `FILE`, of mode 0600"},
					&cli.StringFlag{Name: "authorities", Usage: "write the certificates of the cluster's authorities to `FILE`, by which servers are known"},
					configFlag(), confFlag(), userFlag(),
				},
				Action: makeUserCertificate,
			},
			{
				Name: "tokens", Usage: "list the tokens and certificates that have not expired: a superuser all, everybody their own",
				Flags: []cli.Flag{configFlag(), confFlag(), userFlag(), outputFlag()}, Action: listUserTokens,
			},
			{
				Name: "revoke", Usage: "make a token or a certificate useless, within seconds and on open connections too", ArgsUsage: "ID",
				Flags: []cli.Flag{configFlag(), confFlag(), userFlag()}, Action: revokeUserToken,
			},
		},
	}
}

func makeUserToken(c *cli.Context) error {
	if c.NArg() > 1 {
		return fail(exitUsage, "user token: give one NAME, or none for yourself")
	}
	n, err := findNamenodes(c)
	if err != nil {
		return err
	}
	ask := map[string]any{"user": c.Args().First(), "life": c.Duration("life").String()}
	if c.IsSet("groups") {
		groups := []string{}
		for g := range strings.SplitSeq(c.String("groups"), ",") {
			if g = strings.TrimSpace(g); g != "" {
				groups = append(groups, g)
			}
		}
		ask["groups"] = groups
	}
	f := &login.File{}
	if err := n.ask(c.Context, http.MethodPost, "/api/v1/user-tokens", ask, f); err != nil {
		return err
	}
	if path := c.String("out"); path != "" {
		if err := f.Write(path); err != nil {
			return err
		}
		fmt.Fprintf(c.App.ErrWriter, "%s: token %s of %s, good until %s. Give it to nobody but %s, who says there: hops login --token %s\n",
			path, f.ID, f.User, f.Expires.Local().Format(time.DateTime), f.User, quoted(path))
		return nil
	}
	text, err := f.Marshal()
	if err != nil {
		return err
	}
	_, err = c.App.Writer.Write(text)
	return err
}

func listUserTokens(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	n, err := findNamenodes(c)
	if err != nil {
		return err
	}
	var all struct {
		Tokens []userToken `json:"tokens"`
	}
	if err := n.ask(c.Context, http.MethodGet, "/api/v1/user-tokens", nil, &all); err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(all.Tokens)
	}
	t := newTable(c.App.Writer, "TOKEN", "USER", "GROUPS", "ISSUED", "EXPIRES", "BY", "REMARKS")
	for _, k := range all.Tokens {
		remarks := ""
		if k.Certificate {
			remarks = "certificate "
		}
		if !k.Revoked.IsZero() {
			remarks += "revoked " + k.Revoked.Local().Format(time.DateTime)
		}
		t.row(k.ID, k.User, strings.Join(k.Groups, ","), k.Issued.Local().Format(time.DateTime), k.Expires.Local().Format(time.DateTime), k.By, remarks)
	}
	return t.flush()
}

func revokeUserToken(c *cli.Context) error {
	if c.NArg() != 1 {
		return fail(exitUsage, "user revoke: give the ID of a token; `hops user tokens` lists them")
	}
	n, err := findNamenodes(c)
	if err != nil {
		return err
	}
	id := c.Args().First()
	if err := n.ask(c.Context, http.MethodDelete, "/api/v1/user-tokens/"+url.PathEscape(id), nil, &struct{}{}); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is revoked\n", id)
	return nil
}

// whoami as a namenode answers it.
type whoami struct {
	Cluster   string    `json:"cluster"`
	User      string    `json:"user"`
	RealUser  string    `json:"real_user,omitempty"`
	Groups    []string  `json:"groups"`
	Superuser bool      `json:"superuser"`
	ProvedBy  string    `json:"proved_by"`
	Token     string    `json:"token,omitempty"`
	Expires   time.Time `json:"expires,omitzero"`
}

func (w *whoami) String() string {
	var b strings.Builder
	b.WriteString(w.User)
	if w.RealUser != "" {
		fmt.Fprintf(&b, " (by %s)", w.RealUser)
	}
	if len(w.Groups) > 0 {
		fmt.Fprintf(&b, ", groups %s", strings.Join(w.Groups, " "))
	}
	if w.Superuser {
		b.WriteString(", superuser")
	}
	fmt.Fprintf(&b, "; cluster %s; ", w.Cluster)
	switch w.ProvedBy {
	case "token":
		fmt.Fprintf(&b, "by token %s, good until %s", w.Token, w.Expires.Local().Format(time.DateTime))
	case "ticket":
		b.WriteString("by a ticket of Kerberos")
	case "server":
		b.WriteString("as this machine, a server of the cluster, says")
	case "certificate":
		b.WriteString("by a certificate")
	case "socket":
		b.WriteString("as the owner of the connection on this machine")
	default:
		b.WriteString("not proved")
	}
	return b.String()
}

func whoamiCommand() *cli.Command {
	return &cli.Command{
		Name: "whoami", Usage: "ask the cluster who you are there, and by what you have shown it",
		Flags: []cli.Flag{configFlag(), confFlag(), userFlag(), outputFlag()},
		Action: func(c *cli.Context) error {
			asJSON, err := wantJSON(c)
			if err != nil {
				return err
			}
			n, err := findNamenodes(c)
			if err != nil {
				return err
			}
			var me whoami
			if err := n.ask(c.Context, http.MethodGet, "/api/v1/whoami", nil, &me); err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.App.Writer).Encode(me)
			}
			fmt.Fprintln(c.App.Writer, me.String())
			return nil
		},
	}
}

func logoutCommand() *cli.Command {
	return &cli.Command{
		Name: "logout", Usage: "revoke the token of this machine's login and remove the login",
		Action: func(c *cli.Context) error {
			path, err := login.Path()
			if err != nil {
				return err
			}
			f, err := login.Load(path)
			if err != nil {
				return err
			}
			var left error
			if f.ID != "" && f.Expired(time.Now()) == nil {
				left = loggedIn(f).ask(c.Context, http.MethodDelete, "/api/v1/user-tokens/"+url.PathEscape(f.ID), nil, &struct{}{})
			}
			if err := os.Remove(path); err != nil {
				return err
			}
			if left != nil {
				return fail(exitFailed, "the login is removed here, but its token could not be revoked and stays good until %s: %w", f.Expires.Local().Format(time.DateTime), left)
			}
			fmt.Fprintln(c.App.Writer, "logged out")
			return nil
		},
	}
}
