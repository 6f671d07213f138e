package security

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// crowd is a guarded listener whose connections belong to users of the test's choice.
type crowd struct {
	t        *testing.T
	l        net.Listener
	door     *Door
	accepted chan net.Conn
}

func newCrowd(t *testing.T, door *Door, way Doorway) *crowd {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	c := &crowd{t: t, l: raw, door: door, accepted: make(chan net.Conn, 100)}
	l := door.Guard(raw, way)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.accepted <- conn
		}
	}()
	return c
}

// strangers makes a door whose connections are of the users that are set before each.
func strangers(descriptors int) (*Door, func(uid uint32)) {
	var mu sync.Mutex
	var next uint32
	door := NewDoor(Config{Descriptors: descriptors, Owner: func(ConnAddrs) (uint32, error) {
		mu.Lock()
		defer mu.Unlock()
		if next == nobodys {
			return 0, errors.New("nobody has it")
		}
		return next, nil
	}})
	return door, func(uid uint32) { mu.Lock(); next = uid; mu.Unlock() }
}

const nobodys = 1 << 31

// come makes a connection, which must be accepted; the client's end first.
func (c *crowd) come() (client, server net.Conn) {
	c.t.Helper()
	client, err := net.Dial("tcp", c.l.Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	if _, err := client.Write([]byte("x")); err != nil { // a server says nothing before
		c.t.Fatal(err)
	}
	select {
	case server = <-c.accepted:
	case <-time.After(time.Minute):
		c.t.Fatal("the connection was not accepted")
	}
	c.t.Cleanup(func() { server.Close() })
	return client, server
}

// refused makes a connection that must be closed at once.
func (c *crowd) refused() {
	c.t.Helper()
	client, err := net.Dial("tcp", c.l.Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("the connection was let in: %v", err)
	}
}

// open reports whether the other end has not closed a connection; a round trip on it keeps it busy.
func open(server, client net.Conn) bool {
	if _, err := server.Write([]byte{1}); err != nil {
		return false
	}
	client.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := client.Read(make([]byte, 1))
	return err == nil
}

func TestWhoOpensManyConnectionsLosesTheirOwn(t *testing.T) {
	const mallory, ann = 5001, 5002
	door, be := strangers(1000)
	c := newCrowd(t, door, Doorway{Name: "test", Limit: 8})
	be(ann)
	annClient, annServer := c.come()
	be(mallory)
	var clients, servers []net.Conn
	for range 30 {
		client, server := c.come()
		clients, servers = append(clients, client), append(servers, server)
	}
	if !open(annServer, annClient) {
		t.Fatal("the connection of another user had to make room")
	}
	be(ann)
	for range 3 { // newcomers are served although the port is full
		client, server := c.come()
		if !open(server, client) {
			t.Fatal("a newcomer was not served")
		}
	}
	if held := c.held(); held != 8 {
		t.Fatalf("%d connections are held, 8 are allowed", held)
	}
	// The oldest ones have gone, which nobody used.
	if _, err := clients[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && err == nil {
		t.Fatal("an idle connection of the user with most is still open")
	}
	if !open(servers[29], clients[29]) {
		t.Fatal("the newest connection had to make room for others before it")
	}
}

func (c *crowd) held() int {
	c.door.places.mu.Lock()
	defer c.door.places.mu.Unlock()
	n := 0
	for _, w := range c.door.places.ways {
		n += w.held()
	}
	return n
}

func TestABusyConnectionStays(t *testing.T) {
	door, be := strangers(1000)
	c := newCrowd(t, door, Doorway{Name: "test", Limit: 4})
	be(5001)
	client, server := c.come()
	for range 20 {
		if !open(server, client) {
			t.Fatal("a connection in use was closed for idle ones")
		}
		c.come()
	}
}

func TestTheServersKeepThreeQuarters(t *testing.T) {
	door, be := strangers(1000)
	c := newCrowd(t, door, Doorway{Name: "test", Limit: 8})
	be(uint32(os.Geteuid()))
	for range 8 {
		c.come()
	}
	be(5001)
	for range 20 {
		c.come()
	}
	door.places.mu.Lock()
	own, foreign := door.places.ways[0].own, door.places.ways[0].foreign
	door.places.mu.Unlock()
	if own < 5 || foreign < 2 || own+foreign != 8 {
		t.Fatalf("the servers hold %d places of 8, a stranger %d", own, foreign)
	}
}

func TestDescriptorsOfTheProcessAreShared(t *testing.T) {
	const mallory, ann = 5001, 5002
	door, be := strangers(20)
	attacked := newCrowd(t, door, Doorway{Name: "attacked", Limit: 1000})
	quiet := newCrowd(t, door, Doorway{Name: "quiet", Descriptors: 4})
	be(mallory)
	for range 50 {
		attacked.come()
	}
	be(ann)
	client, server := quiet.come()
	if !open(server, client) {
		t.Fatal("another port had no place left")
	}
	be(mallory)
	for range 50 {
		attacked.come()
	}
	if !open(server, client) {
		t.Fatal("a connection of another port had to make room")
	}
	door.places.mu.Lock()
	defer door.places.mu.Unlock()
	if door.places.used > 20 {
		t.Fatalf("connections use %d descriptors, 20 are allowed", door.places.used)
	}
}

func TestPlacesAreGivenBack(t *testing.T) {
	door, be := strangers(1000)
	c := newCrowd(t, door, Doorway{Name: "test", Limit: 4})
	be(5001)
	for range 10 {
		_, server := c.come()
		server.Close()
		server.Close() // gives back one place, not two
	}
	if n := c.held(); n != 0 || len(door.places.ways[0].users) != 0 || door.places.used != 0 {
		t.Fatalf("%d places are held when all connections are closed", n)
	}
}

func TestWhoHasNoBusinessAtAPort(t *testing.T) {
	door, be := strangers(1000)
	servers := newCrowd(t, door, Doorway{Name: "servers", Servers: true})
	all := newCrowd(t, door, Doorway{Name: "all"})
	be(5001)
	servers.refused()
	all.come()
	be(nobodys)
	all.refused()
	be(uint32(os.Geteuid()))
	servers.come()
}
