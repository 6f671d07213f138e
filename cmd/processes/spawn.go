package processes

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// spawner has a thread of its own that lives as long as the program: the kernel signals children with Pdeathsig when the
// thread ends that started them, and threads of Go may end before the program.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// Spawn starts a program in a process group of its own, which a Ctrl-C at the terminal does not reach; it gets the signal
// when this program has ended, however that happened. What else cmd says of the process, as the user it runs as, stays.
func Spawn(cmd *exec.Cmd, last syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig, cmd.SysProcAttr.Setpgid = last, true
	done := make(chan error)
	spawner() <- func() { done <- cmd.Start() }
	return <-done
}
