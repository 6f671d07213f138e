package state

import (
	"fmt"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// share is what a user's applications hold of what the state has room for: places of live applications, and bytes of
// their documents, asks and launches.
type share struct {
	apps  int
	bytes int64
}

// hold counts for a user. The numbers may be negative.
func (x *index) hold(user string, apps int, bytes int64) {
	h := x.held[user]
	h.apps += apps
	h.bytes += bytes
	if h == (share{}) {
		delete(x.held, user)
	} else {
		x.held[user] = h
	}
	x.total.apps += apps
	x.total.bytes += bytes
}

// use counts for an application's asks and launches.
func (x *index) use(user string, id rm.ApplicationID, bytes int64) {
	x.hold(user, 0, bytes)
	if x.usedBytes[id] += bytes; x.usedBytes[id] == 0 {
		delete(x.usedBytes, id)
	}
}

// userOf is the user of an application.
func (t *tables) userOf(id rm.ApplicationID) string {
	if a, ok := t.apps.Get(&rm.Application{ID: id}); ok {
		return a.User
	}
	return ""
}

// rowBytes is what a row costs besides its text, about.
const rowBytes = 256

// memberBytes is what a wish for a member of an array costs, about.
const memberBytes = 32

// runBytes is what a run of instances that have succeeded costs.
const runBytes = 8

// documentBytes is what a live application costs beside its asks and launches.
func documentBytes(a *rm.Application) int64 {
	return int64(rowBytes + len(a.Document) + len(a.Tokens) + memberBytes*len(a.Members) + runBytes*len(a.Succeeded))
}

func askBytes(a *rm.Ask) int64 {
	n := rowBytes + len(a.ID) + len(a.Model) + len(a.Label) + 4*len(a.Instances) + a.Placement.Bytes() + a.Near.Bytes()
	for _, list := range [][]string{a.Nodes, a.Excluded} {
		for _, text := range list {
			n += 16 + len(text)
		}
	}
	return int64(n)
}

func launchBytes(l *rm.Launch) int64 {
	n := rowBytes + len(l.Tokens)
	for _, a := range l.Argv {
		n += 16 + len(a)
	}
	for _, v := range l.Env {
		n += 32 + len(v.Name) + len(v.Value)
	}
	for _, f := range l.Artifacts {
		n += rowBytes/2 + len(f.Name) + len(f.URI) + len(f.Kind) + len(f.SHA256) + len(f.Visibility) + len(f.Content) + len(f.Pattern)
	}
	return int64(n)
}

const mib = 1 << 20

// Room says whether an application may be submitted now, so that a leader does not replicate what will be refused. A user
// holds at most as much as is free afterwards: somebody alone half of all, two a third each, and there is always room for
// the next one. A repeated submission needs none.
//
// Error: ErrBusy.
func (s *State) Room(a *rm.Application) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known(a) || a.State == rm.StateFailed {
		return nil
	}
	return s.room(a.User, 1, documentBytes(a))
}

func (s *State) room(user string, apps int, bytes int64) error {
	mine := s.held[user]
	if apps > 0 {
		if free := s.config.MaxApplications - s.total.apps; mine.apps+apps > free-apps {
			return fmt.Errorf("%w: %d of user %s live, and %d places of %d are free, of which a user may take half: submit again when some have ended, or end some",
				rm.ErrBusy, mine.apps, user, max(free, 0), s.config.MaxApplications)
		}
	}
	if free := s.config.MaxBytes - s.total.bytes; bytes > 0 && mine.bytes+bytes > free-bytes {
		return fmt.Errorf("%w: those of user %s hold %.1f MiB of job documents and launch contexts, %.1f MiB more are wanted, and %.1f MiB of %d are free, of which a user may take half: "+
			"try again when some have ended, end some, or put large content into the file system and name it among the artifacts",
			rm.ErrBusy, user, float64(mine.bytes)/mib, float64(bytes)/mib, float64(max(free, 0))/mib, s.config.MaxBytes/mib)
	}
	return nil
}

// countUntold counts for a user whose masters have not acknowledged ends. The number may be negative.
func (t *tables) countUntold(user string, n int) {
	row, _ := t.untold.Get(untoldRow{user: user})
	t.untoldCount += n
	if row = (untoldRow{user, row.count + n}); row.count == 0 {
		t.untold.Delete(row)
	} else {
		t.untold.Set(row)
	}
}

// heldBack reports whether nothing more is granted to a user's applications until their masters have acknowledged ends of containers, which are
// remembered until then beside the most others. As in Room a user has at most as many as are free afterwards; but an equal part everybody has, because a
// container ends whether or not there is room, and then one user's are too many.
func (t *tables) heldBack(user string, most int) bool {
	row, _ := t.untold.Get(untoldRow{user: user})
	return t.level >= release.Forgetting && row.count > 0 && row.count >= max(most-t.untoldCount-1, most/(t.untold.Len()+1))
}

// RoomForAsks says whether an application may have more asks now; see Room.
//
// Errors: ErrBusy; ErrInvalidArgument when they are more than one application may have at all.
func (s *State) RoomForAsks(id rm.ApplicationID, asks []*statepb.WantedAsk) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.apps.Get(&rm.Application{ID: id})
	if !ok {
		return notFound(id)
	}
	return s.roomForAsks(a, asks)
}

func (s *State) roomForAsks(a *rm.Application, asks []*statepb.WantedAsk) error {
	bytes := int64(0)
	for _, w := range asks {
		if ask := askOf(w.Ask); ask.Count > 0 {
			bytes += askBytes(&ask)
			if !ask.Held {
				bytes += launchBytes(launchOf(w.Launch))
			}
		}
	}
	return s.roomForBytes(a, bytes)
}

// roomForBytes says whether an application may have more in asks and launches.
func (s *State) roomForBytes(a *rm.Application, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	if most := s.config.MaxBytes / 4; s.usedBytes[a.ID]+bytes > most {
		return metadata.Errorf(metadata.ErrInvalidArgument, "the asks of %v, with what is to run in their containers, have %.1f MiB, and one application may have %.1f: "+
			"put large content into the file system and name it among the artifacts", a.ID, float64(s.usedBytes[a.ID]+bytes)/mib, float64(most)/mib)
	}
	return s.room(a.User, 0, bytes)
}
