package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
)

const labelTLS = "hops, TLS"

// What TLS may cost, as a share of the CPU that all servers and the client take in plain: an operation, and a megabyte.
const (
	tlsOperation = 1.10
	tlsMegabyte  = 1.25
)

// Servers and clients of one machine speak in plain with each other; here the clients do as those of other machines.
var (
	tlsSingle     = plan{group: "tls", title: "TLS and plain, one server: 1 namenode, 1 datanode", hops: shape{1, 1}, secure: true, phases: append(metadataPhases(), dataPhases(1)...)}
	tlsReplicated = plan{
		group: "tls-replicated", title: "TLS and plain, replicated three ways: 3 namenodes, 3 datanodes", hops: shape{3, 3}, secure: true,
		phases: append(metadataPhases(), dataPhases(3)...),
	}
)

// secured are the servers of a side, to which clients speak by TLS.
type secured struct {
	*ours
	dialer *security.Dialer
}

func newSecured(o *ours) (*secured, error) {
	identity, err := authority.LoadIdentity(o.cluster.File().Cluster.Identity)
	if err != nil {
		return nil, err
	}
	trust, err := identity.Trust()
	if err != nil {
		return nil, err
	}
	return &secured{o, &security.Dialer{Trust: trust, Here: func(netip.Addr, netip.Addr) bool { return false }}}, nil
}

func (s *secured) label() string { return labelTLS }

func (s *secured) connect() (*dfs.Client, error) {
	return dfs.New(dfs.Config{
		Namenodes: s.addresses(), Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, role, addr string) (net.Conn, error) {
			return s.dialer.Dial(ctx, addr, authority.Role(role))
		},
	})
}

// stop leaves the servers to the side whose they are.
func (s *secured) stop() error { return nil }

func allCPU(r bench.Result) float64 { return r.ServerCPU + r.ClientCPU }

// tlsTable says what TLS costs: of the CPU, because rates depend on how many cores there are for it.
func tlsTable(b *strings.Builder, t *table) {
	fmt.Fprintf(b, "\n## %s\n\nThe same servers; clients take turns. Goals: all CPU together, at most %.2f times as much an operation, %.2f times a MB.\n\n", t.Title, tlsOperation, tlsMegabyte)
	b.WriteString("| operation | plain, per second | TLS, per second | servers, CPU us, plain | TLS | client, CPU us, plain | TLS | servers, times | all, times | goal |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, w := range t.Rows {
		per, unit := w.units()
		name, goal := w.Name+per, tlsOperation
		if w.Unit == megabytes {
			goal = tlsMegabyte
		}
		plain, tls := w.of(labelHops, allCPU).median, w.of(labelTLS, allCPU).median
		servers, secure := w.of(labelHops, serverCPU), w.of(labelTLS, serverCPU)
		fmt.Fprintf(b, "| %s | %s%s | %s%s | %s | %s | %s | %s | %s | %s | ≤ %.2f: %s |\n", name+failures(w, labelHops, labelTLS),
			w.of(labelHops, rate), unit, w.of(labelTLS, rate), unit, servers, secure, number(w.of(labelHops, clientCPU).median), number(w.of(labelTLS, clientCPU).median),
			ratio(secure.median, servers.median), ratio(tls, plain), goal, reached(tls <= goal*plain))
	}
}
