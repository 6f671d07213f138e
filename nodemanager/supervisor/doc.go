// Package supervisor runs one container: the small process between the node manager and a command.
//
// The node manager starts it as "<hops> supervisor <container directory>" in a session of its own, so that it outlives the
// node manager, and talks to it through a socket in that directory. The supervisor starts the command, ends it when told to,
// when it uses too much memory, log space or disk, or when nobody renews the lease it has, and writes down how it ended. It is a
// subreaper (prctl(2)), so every process that the command leaves behind, double-forked and setsid ones included, becomes
// its child, and wait4 answering ECHILD proves that the tree is empty. Only then is the exit status written.
//
// # Files of a container directory (mode 0700)
//
//	lock             flocked by the supervisor for as long as it lives: who can lock it knows that it is gone
//	launch.json      what to run (Launch); written by the node manager, 0600
//	supervisor.json  process id, for people
//	sock             unix socket: one JSON request per line, one JSON answer per line (protocol.go)
//	exit.json        how it ended (Exit); written once, after the last process is gone
//	supervisor.log   the supervisor's own messages
//
// The directory is nobody's but the node manager's. Where the command runs as another user (Launch.Account), work, logs and tmp
// in it are handed over to that user right before the start.
//
// # Isolation
//
// A launch with an Isolation runs in namespaces in which the servers' files are hidden (isolation.go). The supervisor is in the
// outer ones, its command in the inner ones. With a Private there is one set of namespaces, made by root, in which the container
// has processes, devices and temporary files of its own (private.go). A Confinement takes privileges and system calls away (stage.go, seccomp.go).
//
// # Lease
//
// Only a container with fencing has one.
// Its deadlines are instants of CLOCK_BOOTTIME, which all processes of a machine share and which goes on during suspend. The
// node manager sends two, Term and Kill, and moves them on for as long as the resource manager acknowledges its reports.
// When Term passes the tree gets SIGTERM, when Kill passes SIGKILL, so that the GPUs are free at the end of the lease.
package supervisor
