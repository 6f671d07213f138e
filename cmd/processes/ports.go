package processes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

// blockSize is how many ports of loopback are taken at a time; the first of them is the guard.
const blockSize = 64

// Ports hands out ports of loopback that stay free for the one who took them: a server that is killed finds its port free
// when it starts again. They lie below those that the kernel gives to outgoing connections, and each block has a guard, a
// listener that keeps other users of this package away from it.
type Ports struct {
	free   []int
	guards []net.Listener
}

// Take reserves a number of addresses, 127.0.0.1:PORT.
func (p *Ports) Take(n int) ([]string, error) {
	var out []string
	for len(out) < n {
		if len(p.free) == 0 {
			if err := p.block(); err != nil {
				return nil, err
			}
		}
		out = append(out, fmt.Sprintf("127.0.0.1:%d", p.free[0]))
		p.free = p.free[1:]
	}
	return out, nil
}

// Close gives the ports back.
func (p *Ports) Close() error {
	var errs []error
	for _, g := range p.guards {
		errs = append(errs, g.Close())
	}
	p.guards, p.free = nil, nil
	return errors.Join(errs...)
}

func (p *Ports) block() error {
	low := 10240
	high := min(ephemeral(), 65536)
	if high < low+2*blockSize { // a machine that gives out nearly all ports: above them there are some
		low, high = 61000, 65536
	}
	blocks := (high - low) / blockSize
	for _, b := range rand.Perm(blocks) {
		first := low + b*blockSize
		guard, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first))
		if err != nil {
			continue
		}
		var free []int
		for port := first + 1; port < first+blockSize; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				continue
			}
			l.Close()
			free = append(free, port)
		}
		if len(free) < blockSize/2 { // somebody lives here
			guard.Close()
			continue
		}
		p.guards = append(p.guards, guard)
		p.free = append(p.free, free...)
		return nil
	}
	return fmt.Errorf("no free ports on 127.0.0.1 from %d to %d", low, high)
}

// ephemeral is the first port that the kernel gives to outgoing connections.
func ephemeral() int {
	first := 32768
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &first)
	}
	return first
}
