package main

import (
	"net/http"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/login"
	"github.com/gohops/hops/internal/security"
)

// toServers is the client with which commands ask servers directly, by http URLs: to other machines by TLS.
var toServers = &http.Client{Transport: (&security.Dialer{}).Transport()}

// knowServers says by which authorities servers on other machines are known: those of the file roots (hops.cluster.roots), or
// of the user's login.
func knowServers(roots string) error {
	d, err := login.Dialer(roots)
	if err != nil {
		return err
	}
	toServers.Transport = d.Transport()
	return nil
}

// knowServersAs lets the commands that read hops.yaml speak as one of the machine's servers, where the identity can be read; where
// not, what the user's login knows counts.
func knowServersAs(identity string) error {
	i, err := authority.LoadIdentity(identity)
	if err != nil {
		return knowServers("")
	}
	trust, err := i.Trust()
	if err != nil {
		return err
	}
	toServers.Transport = (&security.Dialer{Trust: trust}).Transport()
	return nil
}
