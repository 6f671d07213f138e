package hrpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// TestPassingCallsGetTheirOwnAnswers sends many calls over one connection, whose memory serves one after the other: some are answered at
// once, some by another goroutine, before or after the handler has returned, some twice in a row or once more when others have their memory, some
// fail, some panic.
func TestPassingCallsGetTheirOwnAnswers(t *testing.T) {
	s := newServer(t, ServerConfig{})
	var again atomic.Int64
	late := make(chan func(), 1)
	s.Handle(nn, Method{
		Name: "groups", New: func() Message { return new(hadooppb.GetGroupsForUserRequestProto) }, Right: security.Anyone, Passing: true,
		Handle: func(c *Call) {
			user := c.Request.(*hadooppb.GetGroupsForUserRequestProto).GetUser()
			answer := func() { c.Reply(&hadooppb.GetGroupsForUserResponseProto{Groups: []string{user, fmt.Sprint(c.CallID)}}) }
			switch how, _, _ := strings.Cut(user, "-"); how {
			case "later":
				go answer()
			case "meanwhile":
				done := make(chan struct{})
				go func() {
					answer()
					close(done)
				}()
				<-done
			case "fail":
				c.Fail(&RemoteError{Class: "fail", Message: user})
			case "panic":
				panic(user)
			case "late":
				wrong := &hadooppb.GetGroupsForUserResponseProto{Groups: []string{"late", user}}
				answer()
				again.Add(1)
				select {
				case late <- func() { c.Reply(wrong) }:
				default:
					c.Reply(wrong)
				}
			default:
				select {
				case wrong := <-late:
					wrong() // another call has the memory by now, perhaps this one
				default:
				}
				answer()
				again.Add(1)
				answer()
			}
		},
	})
	c, err := Dial(t.Context(), start(t, s), DialConfig{Protocol: nn, User: "alice", DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var callers sync.WaitGroup
	for w := range 16 {
		callers.Go(func() {
			for i := range 200 {
				how := []string{"once", "later", "once", "meanwhile", "late", "fail", "panic"}[(w+i)%7]
				user := fmt.Sprintf("%s-%d-%d", how, w, i)
				var answer hadooppb.GetGroupsForUserResponseProto
				err := c.Call(context.Background(), nn, "groups", &hadooppb.GetGroupsForUserRequestProto{User: &user}, &answer)
				switch how {
				case "fail":
					if err == nil || !strings.Contains(err.Error(), user) {
						t.Errorf("%s: %v", user, err)
					}
				case "panic":
					if err == nil || !strings.Contains(err.Error(), "internal error") {
						t.Errorf("%s: %v", user, err)
					}
				default:
					if err != nil || len(answer.Groups) != 2 || answer.Groups[0] != user {
						t.Errorf("%s: %v, %v", user, answer.Groups, err)
					}
				}
			}
		})
	}
	callers.Wait()
	select {
	case wrong := <-late:
		wrong()
	default:
	}
	if n := s.Counts().Again; n != again.Load() {
		t.Errorf("%d answers too many were counted, there were %d", n, again.Load())
	}
}

// TestPassingCallsOfConnectionsThatEnd answers calls as a namenode does that waits for its log: a goroutine has the answers of many connections, some
// of which are gone by then. Clients send calls again under their numbers, read as many answers as they like, byte for byte, and hang up.
func TestPassingCallsOfConnectionsThatEnd(t *testing.T) {
	s := newServer(t, ServerConfig{})
	landing := make(chan func(), 1024)
	var landed sync.WaitGroup
	landed.Go(func() {
		var group []func()
		for answer := range landing {
			group = append(group, answer)
			if len(group) < 16 && len(landing) > 0 {
				continue
			}
			for _, answer := range slices.Backward(group) {
				answer()
			}
			group = group[:0]
		}
	})
	answerTo := func(user, caller string, id int32) (*hadooppb.GetGroupsForUserResponseProto, *RemoteError) {
		if len(user)%5 == 0 {
			return nil, &RemoteError{Class: "fail", Message: user + caller}
		}
		return &hadooppb.GetGroupsForUserResponseProto{Groups: []string{user, caller, fmt.Sprint(id)}}, nil
	}
	s.Handle(nn, Method{
		Name: "groups", New: func() Message { return new(hadooppb.GetGroupsForUserRequestProto) }, Right: security.Anyone, Passing: true,
		Handle: func(c *Call) {
			r := c.Request.(*hadooppb.GetGroupsForUserRequestProto)
			landing <- func() {
				m, failure := answerTo(r.GetUser(), c.Caller.User, c.CallID)
				if failure != nil {
					c.Fail(failure)
					return
				}
				c.Reply(m)
			}
		},
	})
	addr := start(t, s)
	var clients sync.WaitGroup
	for w := range 8 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			caller := fmt.Sprintf("user%d", w)
			for round := range 30 {
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				sent := append(unhex(t, helloHex), frameOf(header(2, 0, callContext), &hadooppb.IpcConnectionContextProto{
					UserInfo: &hadooppb.UserInformationProto{EffectiveUser: &caller}, Protocol: new(nn),
				})...)
				want := map[int32][]byte{}
				var times int
				for id := range int32(20 + rng.IntN(60)) {
					user := fmt.Sprintf("%s-%d-%d-%s", caller, round, id, strings.Repeat("x", rng.IntN(40)))
					call := request(id, 0, nn, "groups", &hadooppb.GetGroupsForUserRequestProto{User: &user})
					for range 1 + rng.IntN(2) {
						sent = append(sent, call...)
						times++
					}
					h := responseHeader{callID: id, clientID: []byte("0123456789abcdef")}
					m, failure := answerTo(user, caller, id)
					if failure != nil {
						h.status, h.detail, h.class, h.message = hadooppb.RpcResponseHeaderProto_ERROR, detailApplication, failure.Class, failure.Message
					}
					if want[id], err = appendResponse(nil, &h, m); err != nil {
						t.Error(err)
					}
				}
				if _, err := conn.Write(sent); err != nil {
					t.Error(err)
				}
				for range rng.IntN(times + 1) {
					frame := make([]byte, 4)
					_, err := io.ReadFull(conn, frame)
					if err == nil {
						frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
						_, err = io.ReadFull(conn, frame[4:])
					}
					if err != nil {
						t.Error(err)
						break
					}
					head, _ := cut(frame[4:])
					if h, err := parseResponseHeader(head); err != nil || !bytes.Equal(frame, want[h.callID]) {
						t.Errorf("call %d, %v: got  %q\nwant %q", h.callID, err, frame, want[h.callID])
					}
				}
				conn.Close()
			}
		})
	}
	clients.Wait()
	eventually(t, func() bool { return s.Counts().Connections == 0 })
	close(landing)
	landed.Wait()
	if n := s.Counts().Again; n != 0 {
		t.Errorf("%d calls were answered more than once", n)
	}
}
