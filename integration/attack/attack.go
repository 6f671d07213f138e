package main

import (
	"context"
	"io"
	"time"
)

// attack is one row of the table.
type attack struct {
	name, what string
	// needsRoot: without another user it shows nothing.
	needsRoot bool
	// informative rows have no bound.
	informative bool
	// long: it takes minutes, and is made with -long, or when -only is its name.
	long  bool
	shape shape
	run   func(context.Context, *scene, *result) error
}

// attacks are all of them, those that hurt most first.
func attacks() []attack {
	namenode, all := shape{namenodes: 1, datanodes: 1}, shape{namenodes: 1, datanodes: 1, nodeManagers: 1}
	open := all
	open.everybodySubmits = true
	return []attack{
		{name: "closed-socket", what: "40 requests each over IPC, WebHDFS and REST as root, from a socket that is closed before anybody asks whose it is", needsRoot: true, shape: all, run: closedSocket},
		{name: "listings-wide", what: "200 connections with 500 listings of 1,000 entries each, no answer is read", shape: namenode, run: listings(200, 500)},
		{name: "listings-deep", what: "5 connections with 4,000 listings of 1,000 entries each, no answer is read", shape: namenode, run: listings(5, 4000)},
		{name: "frames", what: "60 connections that send 60 MiB of a frame of 64", shape: namenode, run: frames(60, 60*mib, 4*mib-4096)},
		{name: "frames-small", what: "2,000 connections that send all but a byte of a frame of 1.9 MiB", shape: namenode, run: frames(2000, 1900<<10, 1)},
		{name: "elements", what: "4 connections with calls of 30 million elements of two bytes: concat, addBlock, create", shape: namenode, run: elements(4, 30_000_000)},
		{name: "elements-small", what: "200 connections with calls of 900,000 elements of two bytes, frames of 1.8 MB", shape: namenode, run: elements(200, 900_000)},
		{name: "liststatus", what: "anonymous LISTSTATUS of a large directory, no answer is read: 5 million entries in all", shape: namenode, run: listStatus},
		{name: "packets", what: "150 writers that send 15 MiB of a packet of 16 to one datanode", shape: shape{namenodes: 1, datanodes: 1}, run: packets},
		{name: "raft-300", what: "300 connections to each Raft port that say nothing, made again when dropped; the leader is killed", shape: shape{namenodes: 3}, run: raftPorts(300)},
		{name: "raft-4400", what: "the same with 4,400 connections", long: true, shape: shape{namenodes: 3}, run: raftPorts(4400)},
		{name: "places-ipc", what: "11,000 quiet IPC connections", needsRoot: true, shape: namenode, run: ipcPlaces},
		{name: "places-http", what: "4,200 connections that are kept alive on each HTTP port", needsRoot: true, shape: all, run: httpPlaces},
		{name: "places-transfer", what: "4,200 connections that say nothing to each of three datanodes", needsRoot: true, shape: shape{namenodes: 1, datanodes: 3}, run: transferPlaces},
		{name: "descriptors", what: "7,000 connections to a namenode that may have 3,000 descriptors", needsRoot: true, shape: shape{namenodes: 1, datanodes: 1, descriptors: 3000}, run: descriptors},
		{name: "credential", what: "another user takes the gRPC port of a killed namenode and resource manager, and shows all servers what was said to it", needsRoot: true, shape: all, run: credential},
		{name: "credential-relayed", what: "the same in the place of one of three namenodes, passing a live one's challenge on to the client", needsRoot: true, shape: shape{namenodes: 3, datanodes: 1}, run: relayed},
		{name: "controller-port", what: "another user takes the port of a killed experiment's controller, and asks for it through the resource manager", needsRoot: true, shape: all, run: controllerPort},
		{name: "blocks", what: "another user reads a 0600 file from its datanode, gives its replicas another generation, and names its own address as the next datanode", needsRoot: true, shape: shape{namenodes: 1, datanodes: 3}, run: blocks},
		{name: "localized", what: "a job reads a file that its user may not read, and that the node has fetched for somebody else", shape: all, run: localized},
		{name: "archive-manifest", what: "a code artifact of some megabytes whose manifest unpacks to a gigabyte", shape: all, run: archiveOf("code", func(w io.Writer) error { return largeManifest(w, 1024*mib) })},
		{name: "archive-entries", what: "a zip file with 2,000,000 entries", shape: all, run: archiveOf("archive", func(w io.Writer) error { return manyEntries(w, 2_000_000) })},
		{name: "archive-directories", what: "a zip file of 6,000 entries that are 606,000 directories", long: true, shape: all, run: archiveDirectories},
		{name: "archive-links", what: "an archive with a link that leads out through another one", shape: all, run: archiveLinks},
		{name: "fat-jobs", what: "2,000 submissions of 500 KiB", shape: open, run: fatJobs},
		{name: "log-flood", what: "a job that writes 3 GiB to its log with yes", shape: all, run: logFlood},
		{name: "stats", what: "one user keeps 8 times 4,000 stats under way", informative: true, shape: namenode, run: stats},
		{name: "noise", what: "garbage on every port, and 200 requests to each that come byte by byte", shape: all, run: noise},
	}
}

// length of an attack: what is enough to see it, or with -long what it took at first.
func (s *scene) length(long time.Duration) time.Duration {
	if s.h.long {
		return long
	}
	return 12 * time.Second
}

// settling is how long the memory of an attacked process is looked at afterwards.
func (s *scene) settling() time.Duration {
	if s.h.long {
		return 30 * time.Second
	}
	return 8 * time.Second
}
