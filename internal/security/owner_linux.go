package security

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// errOrphan: nobody has the socket any more. The kernel says user 0 of such a one, whoever it was.
var errOrphan = errors.New("the peer has closed it")

// socketOwner asks the kernel (sock_diag(7), inet_diag) for the user that owns the far end of a local TCP connection. A
// socket that its process has closed has no owner: that is an error, whatever arrived before.
func socketOwner(conn ConnAddrs) (uint32, error) {
	local, ok1 := conn.Local.(*net.TCPAddr)
	remote, ok2 := conn.Remote.(*net.TCPAddr)
	if !ok1 || !ok2 {
		return 0, errors.New("not a TCP connection")
	}
	families := []uint8{unix.AF_INET6}
	if remote.IP.To4() != nil {
		// An IPv4 client may have connected through an IPv6 socket.
		families = []uint8{unix.AF_INET, unix.AF_INET6}
	}
	for _, family := range families {
		found, err := diagnosis.find(family, remote, local)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		// Where there is no connection the kernel answers with the socket that listens at the address.
		if err == nil && (found.orphan || found.listens) {
			err = errOrphan
		}
		return found.uid, err
	}
	return 0, unix.ENOENT
}

// ListenerOwner asks the kernel for the user who listens at a TCP address of this machine. Nobody there is an error.
func ListenerOwner(at netip.AddrPort) (uint32, error) {
	ip := at.Addr().Unmap()
	families := []uint8{unix.AF_INET6}
	if ip.Is4() {
		families = []uint8{unix.AF_INET, unix.AF_INET6}
	}
	// Of a connection that there is not the kernel finds the listener. No connection has port 0.
	local, remote := net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, at.Port())), net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
	for _, family := range families {
		found, err := diagnosis.find(family, local, remote)
		if errors.Is(err, unix.ENOENT) || err == nil && !found.listens {
			continue
		}
		return found.uid, err
	}
	return 0, unix.ENOENT
}

// SocketUser is the user who has the far end of a Unix-domain socket: of one that was dialled, who listens there.
func SocketUser(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	if failed := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); failed != nil {
		return 0, failed
	}
	if err != nil {
		return 0, err
	}
	return who.Uid, nil
}

// kernelDiag is this process's way to ask: one descriptor, kept for when others run out. Questions go one at a time, and take
// microseconds.
type kernelDiag struct {
	mu   sync.Mutex
	fd   int // 0: not open
	last uint32
}

var diagnosis kernelDiag

// ask sends a question and returns the kernel's answer to it.
func (k *kernelDiag) ask(question []byte) (answer []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fd == 0 {
		if k.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG); err != nil {
			k.fd = 0
			return nil, err
		}
		err = unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	}
	k.last++
	binary.NativeEndian.PutUint32(question[8:], k.last)
	if err == nil {
		err = unix.Sendto(k.fd, question, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	answer = make([]byte, 512)
	n := 0
	for err == nil {
		n, _, err = unix.Recvfrom(k.fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			err = nil
			continue
		}
		if err == nil && n >= diagHeader && binary.NativeEndian.Uint32(answer[8:]) == k.last {
			return answer[:n], nil
		}
	}
	unix.Close(k.fd) // with what may still come
	k.fd = 0
	return nil, err
}

// diagnosed is what the kernel says of a socket.
type diagnosed struct {
	uid     uint32
	orphan  bool // its process has closed it
	listens bool
}

// find looks up the socket from source to destination: of a connection that was accepted, the client's end.
//
//	nlmsghdr      len u32 | type u16 | flags u16 | seq u32 | pid u32                              16 bytes
//	inet_diag_req_v2  family u8 | protocol u8 | ext u8 | pad u8 | states u32 | sockid              56 bytes
//	sockid        sport be16 | dport be16 | src [16] | dst [16] | if u32 | cookie [2]u32          48 bytes
//	inet_diag_msg family u8 | state u8 | timer u8 | retrans u8 | sockid | expires u32 | rqueue u32 | wqueue u32 | uid u32 | inode u32
func (k *kernelDiag) find(family uint8, source, destination *net.TCPAddr) (diagnosed, error) {
	const header, request = diagHeader, 56
	b := make([]byte, header+request)
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], uint32(len(b)))
	ne.PutUint16(b[4:], sockDiagByFamily)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[header:]
	r[0], r[1] = family, unix.IPPROTO_TCP
	ne.PutUint32(r[4:], ^uint32(0))
	id := r[8:]
	binary.BigEndian.PutUint16(id[0:], uint16(source.Port))
	binary.BigEndian.PutUint16(id[2:], uint16(destination.Port))
	putAddress(id[4:20], family, source.IP)
	putAddress(id[20:36], family, destination.IP)
	ne.PutUint32(id[40:], ^uint32(0)) // INET_DIAG_NOCOOKIE
	ne.PutUint32(id[44:], ^uint32(0))
	answer, err := k.ask(b)
	if err != nil {
		return diagnosed{}, fmt.Errorf("sock_diag: %w", err)
	}
	return parseDiag(answer)
}

const (
	diagHeader       = 16 // of a netlink message
	sockDiagByFamily = 20
	tcpListen        = 10 // TCP_LISTEN of the kernel
)

// parseDiag reads the kernel's answer.
func parseDiag(answer []byte) (diagnosed, error) {
	const header = diagHeader
	ne := binary.NativeEndian
	if len(answer) < header+4 {
		return diagnosed{}, errors.New("sock_diag: short answer")
	}
	switch kind := ne.Uint16(answer[4:]); kind {
	case unix.NLMSG_ERROR:
		return diagnosed{}, fmt.Errorf("sock_diag: %w", unix.Errno(-int32(ne.Uint32(answer[header:]))))
	case sockDiagByFamily:
		const uidAt, inodeAt = 4 + 48 + 12, 4 + 48 + 12 + 4
		if len(answer) < header+inodeAt+4 {
			return diagnosed{}, errors.New("sock_diag: short answer")
		}
		return diagnosed{
			uid: ne.Uint32(answer[header+uidAt:]), orphan: ne.Uint32(answer[header+inodeAt:]) == 0, listens: answer[header+1] == tcpListen,
		}, nil
	default:
		return diagnosed{}, fmt.Errorf("sock_diag: answer of type %d", kind)
	}
}

func putAddress(b []byte, family uint8, ip net.IP) {
	if family == unix.AF_INET {
		copy(b, ip.To4())
		return
	}
	copy(b, ip.To16())
}
