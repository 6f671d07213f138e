package main

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// peerGone reports whether the other end of a connection has reset or closed it, without reading what has come.
func peerGone(c net.Conn) bool {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		const established = 1
		gone = err != nil || info.State != established
	})
	return gone || err != nil
}

// sendAndVanish sends a request and the end of the connection in as few segments as there can be, and gives the socket up
// in the same moment: when the server asks whose it is, it is nobody's.
func sendAndVanish(addr string, request []byte) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		c.Close()
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1); failed != nil {
			return
		}
		_, failed = unix.Write(int(fd), request)
	})
	// What is corked leaves with the end of the connection, in one segment.
	return errors.Join(err, failed, c.Close())
}
