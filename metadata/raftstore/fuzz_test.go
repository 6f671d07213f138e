package raftstore

import (
	"bytes"
	"net"
	"testing"
	"time"
)

// talker is a connection whose other end has said everything it will say.
type talker struct {
	net.Conn
	said     *bytes.Reader
	answered int // bytes
}

func (c *talker) Read(b []byte) (int, error) { return c.said.Read(b) }

func (c *talker) Write(b []byte) (int, error) {
	c.answered += len(b)
	return len(b), nil
}

func (c *talker) SetDeadline(time.Time) error { return nil }

// Whatever somebody with the cluster's secret says first: who accepts refuses it with a short reason, and who dials goes on
// only when it is let in.
func FuzzGreeting(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte{1, 5, 'n', 'o'})
	f.Add([]byte(streamMagic + "\x01\x01a\x02c1"))
	f.Add([]byte(questionMagic + "\x01\x00\x00rest"))
	f.Add([]byte(pullMagic + "\x01\x00\x00rest"))
	f.Add([]byte(streamMagic + "\x02\xff"))
	f.Fuzz(func(t *testing.T, said []byte) {
		h := &Host{cfg: HostConfig{ID: "m1"}, groups: map[string]*Group{}}
		c := &talker{said: bytes.NewReader(said)}
		if err := h.route(c); err == nil || c.answered > 2+255 {
			t.Errorf("%q was answered with %d bytes: %v", said, c.answered, err)
		}
		s := &streams{host: h, group: "a", lineage: func() string { return "c1" }, open: map[net.Conn]struct{}{}}
		c = &talker{said: bytes.NewReader(said)}
		if err := s.greet(c, streamMagic, time.Minute); (err == nil) != (len(said) > 0 && said[0] == 0) {
			t.Errorf("the answer %q: %v", said, err)
		}
	})
}
