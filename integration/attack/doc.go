// Command attack attacks real servers as another local user and shows what it cost: the memory of the attacked process,
// whether it died, and how long a healthy client of a third user had to wait. `make attack` runs all attacks against the
// binary that was built; -hops names another one, and -compare the result of another run, so that the same attacks show a
// change of the servers.
//
// # How an attack runs
//
// This process is the director. It starts a fresh cluster of server processes on loopback for each attack, and itself
// again for every part (a child): attackers with user id 65534, the healthy client with 65533. A child gets its orders as
// JSON, works until its standard input is closed, and answers with JSON. Without root there are no other users: attacks
// that are about who somebody is are left out then, and the others run as the servers' own user, who is treated better.
//
// The healthy client does cheap operations in a loop, first in calm, then beside the attack; what the attack costs it is
// the difference of its worst waits, because the machine has its own. Resident memory is sampled every 50 ms; the peak is
// the kernel's (VmHWM, reset before the attack).
//
// Nothing leaves loopback. Every attack is bounded in time and in requests, and ended at once when the attacked process has
// grown by -ceiling; at twice that it is killed, which counts as its death.
package main
