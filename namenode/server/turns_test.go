package server

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// A user who asks for more long reads than there are places does not keep another one waiting, and gets all of them in the end.
func TestLongReadsOfOneUserDoNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{stopped: make(chan struct{})}
		const many = 100
		running := make(chan string, many+1)
		goOn := make(chan struct{})
		long := func(user string) {
			s.aside(user, nil, 0, func(error) { running <- user; <-goOn })
		}
		for range many {
			long("bob")
		}
		synctest.Wait()
		long("alice")
		synctest.Wait()
		got := map[string]int{}
		for range len(running) {
			got[<-running]++
		}
		if got["alice"] != 1 || got["bob"] != longReadsOfOne {
			close(goOn)
			t.Fatalf("%v run, want one of alice's and %d of bob's", got, longReadsOfOne)
		}
		// Where all wait, each has its turn.
		long("alice")
		long("carol")
		long("alice")
		synctest.Wait()
		for range 12 {
			goOn <- struct{}{}
			synctest.Wait()
		}
		for range len(running) {
			got[<-running]++
		}
		if got["alice"] != 3 || got["carol"] != 1 {
			t.Errorf("%v have run, want all of alice's and carol's", got)
		}
		close(goOn)
		synctest.Wait()
		for range len(running) {
			got[<-running]++
		}
		if fmt.Sprint(got) != fmt.Sprintf("map[alice:3 bob:%d carol:1]", many) {
			t.Errorf("%v have run in the end", got)
		}
		if s.long.running != 0 || len(s.long.users) != 0 || len(s.long.order) != 0 {
			t.Errorf("left behind: %d running, %d users, %d wait", s.long.running, len(s.long.users), len(s.long.order))
		}
		for range longReads + 1 {
			long("dave")
		}
		synctest.Wait()
		close(s.stopped) // whoever waits goes on without a place
		synctest.Wait()
		if n := len(running); n != longReads+1 {
			t.Errorf("%d of %d have run when the server stopped", n, longReads+1)
		}
	})
}

// Places that are fewer are kept to, and one user leaves some of them to others.
func TestFewerPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := turns{most: 3, mostOfOne: 2}
		running := map[string]int{}
		goOn := make(chan struct{})
		for _, user := range []string{"bob", "bob", "bob", "bob", "alice", "carol"} {
			go func() {
				if places.take(user, nil) {
					<-goOn
					places.give(user)
				}
			}()
			synctest.Wait()
		}
		for user, u := range places.users {
			running[user] = u.running
		}
		if fmt.Sprint(running) != "map[alice:1 bob:2 carol:0]" {
			t.Errorf("%v run", running)
		}
		close(goOn)
		synctest.Wait()
		if places.running != 0 || len(places.users) != 0 {
			t.Errorf("left behind: %d running, %d users", places.running, len(places.users))
		}
	})
}

// Who gives up waiting leaves nothing behind, whether its turn has come by then or not, and nobody has more than there is for not waiting.
func TestWhoGivesUpWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := turns{most: 3, mostOfOne: 2}
		for i, user := range []string{"bob", "bob", "bob", "alice", "carol"} {
			if given := places.try(user); given != (i != 2 && i != 4) {
				t.Fatalf("%s, who is number %d, has a place: %t", user, i, given)
			}
		}
		stop := make(chan struct{})
		left := make(chan bool, 9)
		for _, user := range []string{"bob", "bob", "carol", "alice"} {
			go func() { left <- places.take(user, stop) }()
			synctest.Wait()
		}
		go func() { left <- places.take("carol", nil) }()
		synctest.Wait()
		places.give("alice") // carol has it, or alice
		synctest.Wait()
		close(stop)
		synctest.Wait()
		n := 0
		for range len(left) {
			if <-left {
				n++
			}
		}
		if n != 1 || places.running != 3 || len(places.order) != 1 {
			t.Errorf("%d have been given a place, %d run, %v wait", n, places.running, places.order)
		}
		places.give("carol")
		synctest.Wait()
		if !<-left {
			t.Error("who has not given up has no place")
		}
		places.give("carol")
		places.give("bob")
		places.give("bob")
		if places.running != 0 || len(places.users) != 0 || len(places.order) != 0 {
			t.Errorf("left behind: %d running, %d users, %v", places.running, len(places.users), places.order)
		}
		for range 100 { // its turn has come in the moment in which it gives up
			if closed := make(chan struct{}); true {
				close(closed)
				if places.take("bob", closed) {
					places.give("bob")
				}
			}
		}
		if places.running != 0 || len(places.users) != 0 {
			t.Errorf("left behind: %d running, %d users", places.running, len(places.users))
		}
	})
}
