// Package fault is the fault matrix: a cluster of real processes under load, of which something is killed, frozen, cut, or damaged, and a
// history of what its users were told, which is compared with what is there when all is well again. `make fault` runs it.
package fault
