package hrpc

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// TestPassingCallsGetTheirOwnAnswers sends many calls over one connection, whose memory serves one after the other: some are answered at
// once, some by another goroutine, before or after the handler has returned, some twice in a row, some fail, some panic.
func TestPassingCallsGetTheirOwnAnswers(t *testing.T) {
	s := newServer(t, ServerConfig{})
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
			default:
				answer()
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
				how := []string{"once", "later", "once", "meanwhile", "once", "fail", "panic"}[(w+i)%7]
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
}
