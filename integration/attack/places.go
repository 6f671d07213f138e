package main

import (
	"context"
	"fmt"
	"time"
)

// perProcess is how many connections one attacker holds: an attacker too has a limit of descriptors.
const perProcess = 5000

// hold are the orders that keep so many connections on each address.
func hold(n int, hello []byte, addrs ...string) []order {
	var out []order
	for _, addr := range addrs {
		for left := n; left > 0; left -= perProcess {
			out = append(out, order{"strangers", strangersOrder{Addrs: []string{addr}, Connections: min(left, perProcess), Hello: hello, Again: 300}})
		}
	}
	return out
}

// keepAlive is a request after which an HTTP connection is idle.
func keepAlive(path string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
}

// ipcPlaces: connections that have said who they are and nothing more.
func ipcPlaces(ctx context.Context, s *scene, r *result) error {
	return s.siege(ctx, r, siege{
		target: "nn1", probes: []probe{s.stat(), s.newStat()}, attackers: hold(11_000, greeting(nameOf(attackerID)), s.namenode(0).IPC),
		length: s.length(30 * time.Second), settle: s.settling(),
	})
}

// httpPlaces: connections that have had an answer and are kept.
func httpPlaces(ctx context.Context, s *scene, r *result) error {
	node, err := s.k.Server("nm1")
	if err != nil {
		return err
	}
	d, err := s.datanode(0)
	if err != nil {
		return err
	}
	manager := s.managerList()
	attackers := hold(4200, keepAlive("/health"), s.namenode(0).HTTP, s.manager().HTTP, d.HTTP, node.NodeManager.HTTP)
	return s.siege(ctx, r, siege{
		target: "nn1", probes: []probe{s.webHDFS(), manager, s.health("datanode", d.HTTP), s.health("node manager", node.NodeManager.HTTP)},
		attackers: attackers, length: s.length(30 * time.Second), settle: s.settling(),
	})
}

// transferPlaces: connections to every datanode's transfer port that say nothing.
func transferPlaces(ctx context.Context, s *scene, r *result) error {
	var addrs []string
	for i := range 3 {
		d, err := s.datanode(i)
		if err != nil {
			return err
		}
		addrs = append(addrs, d.Transfer)
	}
	return s.siege(ctx, r, siege{
		target: "dn1", probes: []probe{s.newWrite()}, attackers: hold(4200, nil, addrs...),
		length: s.length(30 * time.Second), settle: s.settling(),
	})
}

// descriptors: more connections than the server may have descriptors, on several of its ports.
func descriptors(ctx context.Context, s *scene, r *result) error {
	n := s.namenode(0)
	attackers := append(hold(3000, greeting(nameOf(attackerID)), n.IPC), hold(3000, keepAlive("/health"), n.HTTP)...)
	attackers = append(attackers, hold(500, nil, n.GRPC, n.Raft)...)
	return s.siege(ctx, r, siege{
		target: "nn1", probes: []probe{s.newStat(), s.webHDFS(), s.newWrite()}, attackers: attackers,
		length: s.length(30 * time.Second), settle: s.settling(),
	})
}
