package server

import (
	"cmp"
	"slices"
	"sync"
)

// longReads is how many long reads run at a time, and longReadsOfOne how many of one user's.
const (
	longReads      = 8
	longReadsOfOne = 6
)

// turns is who may read for long. Users take turns, and none has all places: one who asks for the summary of a large tree a thousand
// times does not keep others waiting for their listings.
type turns struct {
	mu      sync.Mutex
	running int
	users   map[string]*turn // who runs or waits
	// most run at a time, mostOfOne of one user's; 0: longReads, longReadsOfOne.
	most, mostOfOne int
	order           []string // who waits, the next one first
}

type turn struct {
	running int
	waiting []chan struct{}
}

// take waits for a place. False: stopped was closed first, as the server's is, and there is none to be given back.
func (t *turns) take(user string, stopped <-chan struct{}) bool {
	place := make(chan struct{})
	t.mu.Lock()
	u := t.users[user]
	if u == nil {
		u = t.enter(user)
	}
	if len(u.waiting) == 0 {
		t.order = append(t.order, user)
	}
	u.waiting = append(u.waiting, place)
	t.next()
	t.mu.Unlock()
	select {
	case <-place:
		return true
	case <-stopped:
		t.leave(user, place)
		return false
	}
}

// leave ends waiting for a place, which may have been given meanwhile.
func (t *turns) leave(user string, place chan struct{}) {
	t.mu.Lock()
	u := t.users[user]
	i := -1
	if u != nil {
		i = slices.Index(u.waiting, place)
	}
	if i < 0 {
		t.mu.Unlock()
		t.give(user)
		return
	}
	defer t.mu.Unlock()
	if u.waiting = slices.Delete(u.waiting, i, i+1); len(u.waiting) > 0 {
		return
	}
	t.order = slices.DeleteFunc(t.order, func(name string) bool { return name == user })
	if u.running == 0 {
		delete(t.users, user)
	}
}

// try is take that does not wait. Nobody is passed over: who waits while there are places has all that one user may have.
func (t *turns) try(user string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	most, mostOfOne := t.limits()
	u := t.users[user]
	if t.running >= most || u != nil && u.running >= mostOfOne {
		return false
	}
	if u == nil {
		u = t.enter(user)
	}
	u.running++
	t.running++
	return true
}

// enter adds a user. It is called with mu held.
func (t *turns) enter(user string) *turn {
	if t.users == nil {
		t.users = map[string]*turn{}
	}
	u := &turn{}
	t.users[user] = u
	return u
}

func (t *turns) limits() (most, mostOfOne int) {
	return cmp.Or(t.most, longReads), cmp.Or(t.mostOfOne, longReadsOfOne)
}

// give gives a user's place back.
func (t *turns) give(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.users[user]
	t.running--
	if u.running--; u.running == 0 && len(u.waiting) == 0 {
		delete(t.users, user)
	}
	t.next()
}

// next gives free places to those whose turn it is.
func (t *turns) next() {
	most, mostOfOne := t.limits()
	for t.running < most {
		i := slices.IndexFunc(t.order, func(user string) bool { return t.users[user].running < mostOfOne })
		if i < 0 {
			return
		}
		user := t.order[i]
		t.order = slices.Delete(t.order, i, i+1)
		u := t.users[user]
		close(u.waiting[0])
		if u.waiting = u.waiting[1:]; len(u.waiting) > 0 {
			t.order = append(t.order, user)
		}
		u.running++
		t.running++
	}
}
