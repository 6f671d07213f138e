package main

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/config"
)

// machine says how much of this machine containers may use when nobody says otherwise: eight vcores (YARN's default) or
// its cores if it has more, and its memory less a fifth.
func machine() (m struct {
	memory config.Size
	cores  int
},
) {
	m.cores = max(8, runtime.NumCPU())
	m.memory = 1 << 30
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.memory = config.Size(uint64(info.Totalram)*uint64(info.Unit)/5*4) >> 20 << 20
	}
	return m
}
