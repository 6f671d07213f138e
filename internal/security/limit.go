package security

import (
	"net"
	"sync"
)

// MaxConnections is how many connections a door serves at a time unless it says otherwise.
const MaxConnections = 4096

// LimitConnections makes a listener close connections at once that come while limit of them are open: whoever opens many
// and says nothing must not use up the process's descriptors. limit 0 is MaxConnections.
func LimitConnections(l net.Listener, limit int) net.Listener {
	if limit <= 0 {
		limit = MaxConnections
	}
	return &limitedListener{Listener: l, free: make(chan struct{}, limit)}
}

type limitedListener struct {
	net.Listener
	free chan struct{} // holds a token of every open connection
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &limitedConn{Conn: c, done: sync.OnceFunc(func() { <-l.free })}, nil
		default:
			c.Close()
		}
	}
}

type limitedConn struct {
	net.Conn
	done func()
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.done()
	return err
}
