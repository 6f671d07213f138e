package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/config"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
)

// namenodes are asked over HTTP for what concerns users, whichever of them leads.
type namenodes struct {
	addresses []string // URLs without a path
	http      *http.Client
	claim     string      // the user whom requests name; empty: the token says it
	login     *login.File // nil: the cluster was found in another way
}

// configFlag names the configuration of a server's machine.
func configFlag() cli.Flag {
	return &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "configuration `FILE` of a server's machine (/etc/hops/hops.yaml), whose namenodes are asked; default: the cluster is found as --conf says"}
}

// askPatience bounds one request.
const askPatience = 40 * time.Second

// loggedIn are the namenodes of a login.
func loggedIn(f *login.File) *namenodes {
	n := &namenodes{http: &http.Client{Transport: f.Transport(authority.Namenode, askPatience), Timeout: askPatience}, login: f}
	for _, m := range f.Namenodes {
		n.addresses = append(n.addresses, "https://"+m.HTTP)
	}
	return n
}

// findNamenodes finds them as every command finds its cluster; on a server's machine --config names them.
func findNamenodes(c *cli.Context) (*namenodes, error) {
	plain := &namenodes{claim: c.String("user")}
	if plain.claim == "" {
		plain.claim = os.Getenv("HADOOP_USER_NAME")
	}
	if plain.claim == "" {
		who, err := user.Current()
		if err != nil {
			return nil, err
		}
		plain.claim = who.Username
	}
	roots := ""
	if path := c.String("config"); path != "" {
		file, err := config.Load(path)
		if err != nil {
			return nil, err
		}
		for _, n := range file.Namenodes {
			plain.addresses = append(plain.addresses, "http://"+n.HTTP)
		}
		if i, err := authority.LoadIdentity(file.Cluster.Identity); err == nil { // as this machine, where another one's namenode leads
			member, err := i.Member(time.Now)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file.Cluster.Identity, err)
			}
			plain.http = &http.Client{Transport: (&security.Dialer{Member: member}).Transport(authority.Namenode), Timeout: askPatience}
			return plain, nil
		}
	} else {
		if c.String("conf") == "" {
			f, err := login.Chosen()
			if err != nil {
				return nil, err
			}
			if f != nil {
				if err := f.Expired(time.Now()); err != nil {
					return nil, fail(exitDenied, "%w", err)
				}
				n := loggedIn(f)
				n.claim = cmp.Or(c.String("user"), os.Getenv("HADOOP_USER_NAME"))
				return n, nil
			}
		}
		conf, err := hadoopConf(c.String("conf"))
		if err != nil {
			return nil, err
		}
		roots = conf.Properties["hops.cluster.roots"]
		plain.addresses = httpAddresses(conf)
	}
	if len(plain.addresses) == 0 {
		return nil, noCluster("the configuration names no namenode's HTTP address (dfs.namenode.http-address)")
	}
	dialer, err := login.Dialer(roots, nil)
	if err != nil {
		return nil, err
	}
	plain.http = &http.Client{Transport: dialer.Transport(authority.Namenode), Timeout: askPatience}
	return plain, nil
}

// httpAddresses are those of the namenodes of a configuration of Hadoop's.
func httpAddresses(conf *dfs.HadoopConf) (out []string) {
	for name, value := range conf.Properties {
		if strings.HasPrefix(name, "dfs.namenode.http-address") && value != "" {
			out = append(out, "http://"+value)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ask sends a request to whichever namenode leads and reads its answer, JSON, into a value.
func (n *namenodes) ask(ctx context.Context, method, path string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	var problems []error
	for _, address := range n.addresses {
		target := address + path
		if n.claim != "" {
			name := "user.name"
			if n.login != nil {
				name = "doas"
			}
			target += "?" + name + "=" + url.QueryEscape(n.claim)
		}
		request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(data))
		if err != nil {
			return err
		}
		answer, err := n.http.Do(request)
		if err != nil {
			if _, wrapped := errors.AsType[*url.Error](err); wrapped {
				err = errors.Unwrap(err) // which says the whole address once more
			}
			problems = append(problems, fmt.Errorf("%s: %w", address, err))
			continue
		}
		text, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
		answer.Body.Close()
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", address, err))
			continue
		}
		if answer.StatusCode == http.StatusOK {
			if err := json.Unmarshal(text, into); err != nil {
				return fmt.Errorf("%s%s: the answer cannot be read: %w", address, path, err)
			}
			return nil
		}
		var said struct{ Detail string }
		if json.Unmarshal(text, &said) != nil || said.Detail == "" {
			said.Detail = fmt.Sprintf("%s: %s %s", address, answer.Status, strings.TrimSpace(string(text[:min(len(text), 200)])))
		}
		refused := errors.New(said.Detail)
		code := exitFailed
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			code = exitDenied
		case http.StatusBadRequest:
			code = exitUsage
		case http.StatusMisdirectedRequest, http.StatusServiceUnavailable: // it does not lead
			problems = append(problems, refused)
			continue
		}
		return &statusError{code, refused}
	}
	return &statusError{exitUnreachable, errors.Join(problems...)}
}
