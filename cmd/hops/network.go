package main

import (
	"net/http"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
)

// toServers is the client with which commands ask servers directly, by http URLs: to other machines by TLS.
var toServers = &http.Client{Transport: (&security.Dialer{}).Transport()}

// knowServers says by which authorities servers on other machines are known: those of the file roots (hops.cluster.roots), or
// of the user's login.
func knowServers(roots string) error {
	var own *login.File
	if roots == "" {
		var err error
		if own, err = login.Default(); err != nil {
			return err
		}
	}
	d, err := login.Dialer(roots, own)
	if err != nil {
		return err
	}
	toServers.Transport = d.Transport()
	return nil
}

// knowServersAs lets the commands that read hops.yaml speak as one of the machine's servers, where the identity can be read; where
// not, they are known by roots, as knowServers has it.
func knowServersAs(identity, roots string) error {
	i, err := authority.LoadIdentity(identity)
	if err != nil {
		return knowServers(roots)
	}
	m, err := i.Member(time.Now)
	if err != nil {
		return err
	}
	toServers.Transport = (&security.Dialer{Member: m}).Transport()
	return nil
}
