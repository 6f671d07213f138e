package supervisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// serve answers the node manager until the socket closes.
func (s *supervisor) serve() {
	for {
		conn, err := s.socket.Accept()
		if err != nil {
			return
		}
		go s.converse(conn.(*net.UnixConn))
	}
}

func (s *supervisor) converse(conn *net.UnixConn) {
	if err := checkPeer(conn); err != nil {
		s.log.Warn("refused a connection", "error", err)
		conn.Close()
		return
	}
	s.talk(conn)
}

// talk answers the lines of one connection.
func (s *supervisor) talk(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 4096), maxLine)
	for lines.Scan() {
		var r request
		reply := answer{}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			reply.Error = fmt.Sprintf("not a request: %v", err)
		} else if r.Op == "wait" {
			s.answerWait(conn)
			return
		} else if r.Op == "exec" {
			x, err := s.begin(r.Exec)
			if err == nil {
				s.answerExec(conn, x)
				return
			}
			reply.Error = err.Error()
		} else {
			reply = s.handle(r)
		}
		if json.NewEncoder(conn).Encode(reply) != nil {
			return
		}
	}
}

// checkPeer lets only our own user and root in; the directory's mode says the same.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user id %d may not speak to this supervisor", cred.Uid)
	}
	return nil
}

func (s *supervisor) handle(r request) answer {
	switch r.Op {
	case "status":
	case "renew":
		if r.Lease == nil {
			return answer{Error: "renew without a lease"}
		}
		s.checkLease() // one that has ended stays so, also when it was not looked at in time
		s.renew(*r.Lease)
		s.poke()
	case "share":
		if r.Share < 1 {
			return answer{Error: fmt.Sprintf("%d containers share a directory of this one", r.Share)}
		}
		s.sharers.Store(int64(r.Share))
	case "refresh":
		if len(r.Tokens) == 0 || s.launch.CredentialsDir == "" {
			return answer{Error: "this container was given no credentials to refresh"}
		}
		s.refreshing.Lock()
		err := s.launch.putTokens(r.Tokens)
		s.refreshing.Unlock()
		if err != nil {
			return answer{Error: err.Error()}
		}
	case "signal":
		if r.Signal < 1 || r.Signal > 64 {
			return answer{Error: fmt.Sprintf("%d is not a signal", r.Signal)}
		}
		s.mu.Lock()
		main, over := s.main, s.reaped
		s.mu.Unlock()
		if main != 0 && !over {
			if err := unix.Kill(-main, unix.Signal(r.Signal)); err != nil && err != unix.ESRCH {
				return answer{Error: err.Error()}
			}
		}
	case "stop":
		if r.Stop == nil {
			return answer{Error: "stop without a reason"}
		}
		s.stop(*r.Stop)
	default:
		return answer{Error: fmt.Sprintf("no such request: %.40q", r.Op)}
	}
	return answer{Status: s.status()}
}

func (s *supervisor) status() *Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &Status{
		Supervisor: os.Getpid(), Main: s.main, Stopping: s.cause != nil, Memory: s.memory, Lease: s.lease, Stuck: s.stuck,
	}
	if !s.startedAt.IsZero() {
		st.Started = s.startedAt.UnixMilli()
	}
	return st
}

// answerWait answers once the container has ended.
func (s *supervisor) answerWait(conn net.Conn) {
	s.answering.Add(1)
	defer s.answering.Add(-1)
	hungUp := make(chan struct{})
	go func() {
		defer close(hungUp)
		var b [1]byte
		_, _ = conn.Read(b[:]) // only ever ends by the other side going away
	}()
	select {
	case <-s.ended:
	case <-hungUp:
		select {
		case <-s.ended: // both: the answer is there for whoever still reads
		default:
			return
		}
	}
	s.mu.Lock()
	exit := s.exit
	s.mu.Unlock()
	_ = json.NewEncoder(conn).Encode(answer{Exit: exit})
}
