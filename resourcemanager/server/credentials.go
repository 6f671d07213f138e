package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/internal/token"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	"github.com/gohops/hops/resourcemanager/scheduler"
	"github.com/gohops/hops/resourcemanager/state"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

const (
	// tokenTime is how long the filesystem may take with one token.
	tokenTime = 30 * time.Second
	// tokensAtOnce is how many tokens are asked for at a time, of which one user's are half at most, and how many are renewed or
	// cancelled.
	tokensAtOnce = 32
	// firstRenewal is when a token is renewed for the first time, at the latest: until then it is not known for how long one is good.
	// Most jobs have ended before.
	firstRenewal = time.Minute
	// tokenRetry and tokenRetryMost bound the pause after something failed.
	tokenRetry, tokenRetryMost = 250 * time.Millisecond, 15 * time.Second
	// tokenQuiet is how long an application waits for its first token before that is said: one takes some milliseconds.
	tokenQuiet = time.Second
)

// errand is something to do with a token: get one for an application, or renew or cancel what it has.
type errand struct {
	app    rm.ApplicationID
	number int64 // of the token; of one to get, 0
	cancel bool
}

// attempt is what became of an errand so far.
type attempt struct {
	since, next time.Time
	pause       time.Duration
	why         error
}

// keeper has the tokens of applications got, renewed, replaced and cancelled, while its reign lasts. No errand waits for another
// one's. What is due is found by looks at all applications, which rest in proportion to what they take; what is to be done for an
// application that has come or ended is done without one, and so is what is next in line when a place is free.
type keeper struct {
	r        *reign
	wg       sync.WaitGroup
	wake     chan struct{}
	newcomer chan struct{} // there are fresh ones

	mu sync.Mutex // guards everything below
	// fresh are applications that have come, and may want their first token, or have ended, so that theirs are to be cancelled.
	fresh map[rm.ApplicationID]bool
	// line are those, by user, that have found no place to be asked for, in the order in which they came; inLine says which; turns are the
	// users, the one whose turn was the longest ago first.
	line   map[string][]rm.ApplicationID
	inLine map[rm.ApplicationID]bool
	turns  []string
	// tending are renewals and cancellations that have found no place, in the order in which they came, and tended says which.
	tending []errand
	tended  map[errand]bool
	busy    map[errand]bool
	places,
	others int
	users  map[string]int // tokens asked for
	failed map[errand]*attempt
}

func newKeeper(r *reign) *keeper {
	return &keeper{
		r: r, wake: make(chan struct{}, 1), newcomer: make(chan struct{}, 1), busy: map[errand]bool{}, users: map[string]int{}, failed: map[errand]*attempt{},
		fresh: map[rm.ApplicationID]bool{}, line: map[string][]rm.ApplicationID{}, inLine: map[rm.ApplicationID]bool{}, tended: map[errand]bool{},
	}
}

// noted wakes the keeper for what has come, or ended.
func (k *keeper) noted(apps map[rm.ApplicationID]bool) {
	k.mu.Lock()
	for id := range apps {
		k.fresh[id] = true
	}
	k.mu.Unlock()
	kick(k.newcomer)
	kick(k.wake)
}

// tokenRest is how long to leave alone all applications after a look at them: submissions, and what fails at once, wake us all the time.
func tokenRest(took time.Duration) time.Duration { return max(restAfter(took), 2*time.Millisecond) }

// run looks after tokens until the reign ends, and waits for what is under way.
func (k *keeper) run() {
	defer k.wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var rested time.Time
	for {
		select {
		case <-k.r.ctx.Done():
			return
		case <-k.newcomer:
			k.welcome()
			continue
		case <-k.wake:
		case <-timer.C:
		}
		start := time.Now()
		if left := rested.Sub(start); left > 0 {
			timer.Reset(left)
			continue
		}
		next := k.look(start)
		end := time.Now()
		rested = end.Add(k.r.s.config.tokenRest(end.Sub(start)))
		timer.Reset(next)
	}
}

// welcome asks for the tokens of new applications, and has those of ended ones cancelled.
func (k *keeper) welcome() {
	k.mu.Lock()
	fresh := k.fresh
	k.fresh = map[rm.ApplicationID]bool{}
	k.mu.Unlock()
	for _, id := range slices.SortedFunc(maps.Keys(fresh), rm.ApplicationID.Compare) {
		k.ask(id)
		for _, c := range k.r.s.state.View().Credentials(id) {
			k.tend(errand{app: id, number: c.Number})
		}
	}
}

// tend does what is due for a token that an application has, if there is a place.
func (k *keeper) tend(e errand) {
	view, now := k.r.s.state.View(), time.Now()
	for _, c := range view.Credentials(e.app) {
		if c.Number != e.number {
			continue
		}
		if e, at, do := k.duty(view, c, now); do != nil && !at.After(now) {
			var next time.Time // a look finds out
			k.start(e, "", now, &next, do)
		}
	}
}

// duty is what has to be done for a token next, and when; without do nothing.
func (k *keeper) duty(view *state.View, c *rm.Credential, now time.Time) (e errand, at time.Time, do func(context.Context) error) {
	a := view.Application(c.Application)
	e = errand{app: c.Application, number: c.Number}
	switch {
	case now.After(c.Max.Time()):
		return e, now, func(ctx context.Context) error { return k.drop(ctx, c) }
	case a == nil || a.State.Final() && a.Live == 0:
		e.cancel = true
		return e, now, func(ctx context.Context) error { return k.cancel(ctx, c) }
	case c.Expires < c.Max:
		return e, renewal(c), func(ctx context.Context) error { return k.renew(ctx, c) }
	}
	return e, now, nil
}

// ask asks for an application's token, if one is due and there is a place.
func (k *keeper) ask(id rm.ApplicationID) {
	view, now := k.r.s.state.View(), time.Now()
	a := view.Application(id)
	if a == nil || a.State.Final() {
		return
	}
	all := view.Credentials(id)
	if !wanted(all, now).After(now) {
		var next time.Time // a look finds out
		k.start(errand{app: id}, a.User, now, &next, k.getting(a, all))
	}
}

// wanted is when an application's next token is to be asked for, by those that it has.
func wanted(all []*rm.Credential, now time.Time) time.Time {
	if len(all) == 0 {
		return now
	}
	last := all[len(all)-1]
	return last.Got.Time().Add(life(last) / 2)
}

// getting is the errand of an application's next token, after those that it had when somebody looked.
func (k *keeper) getting(a *rm.Application, all []*rm.Credential) func(context.Context) error {
	return func(ctx context.Context) error {
		if now := k.r.s.state.View().Credentials(a.ID); number(now) != number(all) {
			return nil // got since we looked
		}
		return k.get(ctx, a.ID, a.User, number(all)+1)
	}
}

// start sets an errand going, if begin has a place for it.
func (k *keeper) start(e errand, user string, now time.Time, next *time.Time, do func(context.Context) error) {
	if !k.begin(e, user, now, next) {
		return
	}
	k.wg.Go(func() {
		ctx, cancel := context.WithTimeout(k.r.ctx, tokenTime)
		defer cancel()
		k.done(e, user, do(ctx))
		k.askNext()
	})
}

// askNext starts what is in line, as far as there are places, each user in turn.
func (k *keeper) askNext() {
	for k.r.ctx.Err() == nil {
		k.mu.Lock()
		id, ask := k.nextInLine()
		e, tend := k.nextTended()
		k.mu.Unlock()
		if ask {
			k.ask(id)
		}
		if tend {
			k.tend(e)
		}
		if !ask && !tend {
			return
		}
	}
}

// nextTended takes the next token for which there is a place out of the line. k.mu is held.
func (k *keeper) nextTended() (e errand, ok bool) {
	if k.others >= tokensAtOnce || len(k.tending) == 0 {
		return e, false
	}
	e, k.tending = k.tending[0], k.tending[1:]
	delete(k.tended, e)
	return e, true
}

// nextInLine takes the next application for which there is a place out of the line. k.mu is held.
func (k *keeper) nextInLine() (rm.ApplicationID, bool) {
	if k.places >= tokensAtOnce {
		return rm.ApplicationID{}, false
	}
	for i, user := range k.turns {
		if k.users[user] >= tokensAtOnce/2 {
			continue
		}
		id, rest := k.line[user][0], k.line[user][1:]
		delete(k.inLine, id)
		k.turns = slices.Delete(k.turns, i, i+1)
		if k.line[user] = rest; len(rest) == 0 {
			delete(k.line, user)
		} else {
			k.turns = append(k.turns, user)
		}
		return id, true
	}
	return rm.ApplicationID{}, false
}

// lineUp has an application wait for a place. k.mu is held.
func (k *keeper) lineUp(id rm.ApplicationID, user string) {
	if k.inLine[id] {
		return
	}
	if len(k.line[user]) == 0 {
		k.turns = append(k.turns, user)
	}
	k.inLine[id] = true
	k.line[user] = append(k.line[user], id)
}

// leaveLine takes those out of the lines that want nothing any more. k.mu is held.
func (k *keeper) leaveLine(wanted map[errand]bool) {
	k.tending = slices.DeleteFunc(k.tending, func(e errand) bool {
		if wanted[e] {
			return false
		}
		delete(k.tended, e)
		return true
	})
	k.turns = slices.DeleteFunc(k.turns, func(user string) bool {
		left := slices.DeleteFunc(k.line[user], func(id rm.ApplicationID) bool {
			if wanted[errand{app: id}] {
				return false
			}
			delete(k.inLine, id)
			return true
		})
		if k.line[user] = left; len(left) == 0 {
			delete(k.line, user)
			return true
		}
		return false
	})
}

// look starts what is due, and returns when to look again if nobody wakes us.
func (k *keeper) look(now time.Time) time.Duration {
	view := k.r.s.state.View()
	next := now.Add(time.Hour)
	wants := map[errand]bool{}
	due := func(e errand, user string, at time.Time, do func(context.Context) error) {
		wants[e] = true
		if at.After(now) {
			next = earlier(next, at)
			return
		}
		k.start(e, user, now, &next, do)
	}
	for a := range view.Live() {
		if a.State.Final() {
			continue
		}
		all := view.Credentials(a.ID)
		if told := a.Submitted.Time().Add(tokenQuiet); len(all) == 0 && told.After(now) {
			next = earlier(next, told)
		} else if len(all) == 0 {
			kick(k.r.wake) // which says so
		}
		due(errand{app: a.ID}, a.User, wanted(all, now), k.getting(a, all))
	}
	for c := range view.AllCredentials() {
		if e, at, do := k.duty(view, c, now); do != nil {
			due(e, "", at, do)
		}
	}
	k.mu.Lock()
	for e := range k.failed {
		if !wants[e] {
			delete(k.failed, e)
		}
	}
	k.leaveLine(wants)
	k.mu.Unlock()
	return max(next.Sub(now), 0)
}

// number is that of the last of an application's tokens; 0: it has none.
func number(all []*rm.Credential) int64 {
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Number
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// life is how long a token is good at most.
func life(c *rm.Credential) time.Duration { return c.Max.Time().Sub(c.Got.Time()) }

// renewal is when a token is renewed: when half of the time is over for which it is good.
func renewal(c *rm.Credential) time.Time {
	if c.Expires == 0 {
		return c.Got.Time().Add(min(firstRenewal, life(c)/8))
	}
	return c.Renewed.Time().Add(c.Expires.Time().Sub(c.Renewed.Time()) / 2)
}

// begin takes a place for an errand. false: it is under way, has to wait after it failed, or there is no place, until one is given back; it lines up for
// that.
func (k *keeper) begin(e errand, user string, now time.Time, next *time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.busy[e] {
		return false
	}
	if f := k.failed[e]; f != nil && f.next.After(now) {
		*next = earlier(*next, f.next)
		return false
	}
	if e.number > 0 {
		if k.others >= tokensAtOnce {
			if !k.tended[e] {
				k.tended[e] = true
				k.tending = append(k.tending, e)
			}
			return false
		}
		k.others++
	} else {
		if k.places >= tokensAtOnce || k.users[user] >= tokensAtOnce/2 {
			k.lineUp(e.app, user)
			return false
		}
		k.places++
		k.users[user]++
	}
	k.busy[e] = true
	return true
}

// done gives the place of an errand back, and notes that it failed. What fails for good, or for too long, ends an application that has no
// token yet; one that has is not worse off than before.
func (k *keeper) done(e errand, user string, err error) {
	k.mu.Lock()
	delete(k.busy, e)
	if e.number > 0 {
		k.others--
	} else {
		k.places--
		if k.users[user]--; k.users[user] == 0 {
			delete(k.users, user)
		}
	}
	f, now := k.failed[e], time.Now()
	switch {
	case err == nil:
		delete(k.failed, e)
	case f == nil:
		f = &attempt{since: now, pause: tokenRetry}
		k.failed[e] = f
	default:
		f.pause = min(2*f.pause, tokenRetryMost)
	}
	var last attempt
	if err != nil {
		f.why, f.next = err, now.Add(f.pause)
		last = *f
	}
	k.mu.Unlock()
	if err != nil && k.r.ctx.Err() == nil {
		k.complain(e, user, last, now)
	}
	kick(k.wake)
	kick(k.r.wake) // the reason why it waits is another
}

func (k *keeper) complain(e errand, user string, f attempt, now time.Time) {
	s := k.r.s
	if e.number == 0 && len(s.state.View().Credentials(e.app)) == 0 && (forGood(f.why) || now.Sub(f.since) > s.config.TokenPatience) {
		why := fmt.Sprintf("the filesystem gives no delegation token for user %s, which the containers of %v need: %v", user, e.app, f.why)
		if !forGood(f.why) {
			why = fmt.Sprintf("%s (tried for %v)", why, s.config.TokenPatience)
		}
		_, err := s.propose(k.r.ctx, &statepb.Command{Op: &statepb.Command_Fail{Fail: &statepb.Fail{
			Epoch: k.r.epoch, Application: state.ApplicationID(e.app), Diagnostics: cut(why, maxDiagnostics),
		}}})
		if err == nil {
			s.log.Warn("application failed", "app", e.app, "why", why)
		}
		return
	}
	if f.pause == tokenRetry { // once
		what := "got"
		switch {
		case e.cancel:
			what = "cancelled"
		case e.number > 0:
			what = "renewed"
		}
		s.log.Warn("delegation token is not "+what+", trying again", "app", e.app, "err", f.why)
	}
}

// forGood reports whether asking again would not help.
func forGood(err error) bool {
	for _, kind := range []*metadata.Kind{metadata.ErrPermission, metadata.ErrUnauthorized, metadata.ErrInvalidArgument, metadata.ErrUnsupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// get gets a token for an application and has it kept. One that comes too late is cancelled.
func (k *keeper) get(ctx context.Context, id rm.ApplicationID, user string, number int64) error {
	s := k.r.s
	t, err := s.config.Tokens.Get(ctx, user)
	if err != nil {
		return err
	}
	says, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return err
	}
	got := metadata.TimeOf(time.Now())
	c := &rm.Credential{Application: id, Number: number, Sealed: s.seal(id, t), Got: got, Max: got + metadata.Time(says.MaxDate-says.Issued)}
	err = k.keep(ctx, c)
	switch {
	case errors.Is(err, rm.ErrStaleAttempt):
		return s.config.Tokens.Cancel(ctx, t)
	case errors.Is(err, rm.ErrStaleEpoch), errors.Is(err, metadata.ErrStandby): // it is certainly not kept, and whoever leads now gets another
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTime)
		defer cancel()
		if e := s.config.Tokens.Cancel(ctx, t); e != nil {
			s.log.Debug("a token that nobody needs is not cancelled", "app", id, "err", e)
		}
	}
	return err
}

func (k *keeper) keep(ctx context.Context, c *rm.Credential) error {
	_, err := k.r.s.propose(ctx, &statepb.Command{Op: &statepb.Command_KeepCredentials{KeepCredentials: &statepb.KeepCredentials{
		Epoch: k.r.epoch, Keep: []*statepb.Credential{state.Credential(c)},
	}}})
	return err
}

func (k *keeper) drop(ctx context.Context, c *rm.Credential) error {
	_, err := k.r.s.propose(ctx, &statepb.Command{Op: &statepb.Command_KeepCredentials{KeepCredentials: &statepb.KeepCredentials{
		Epoch: k.r.epoch, Drop: []*statepb.Credential{{Application: state.ApplicationID(c.Application), Number: c.Number}},
	}}})
	return err
}

// renew makes a token good for longer, or has one forgotten that the filesystem does not know any more. Until when is told by the namenode's clock, which was ours when the token was issued.
func (k *keeper) renew(ctx context.Context, c *rm.Credential) error {
	t, err := k.r.s.unseal(c)
	if err != nil {
		return err
	}
	says, err := token.ParseIdentifier(t.Identifier)
	if err != nil {
		return err
	}
	until, err := k.r.s.config.Tokens.Renew(ctx, t)
	if errors.Is(err, metadata.ErrToken) { // its user has cancelled it, say: another one takes its place
		return k.drop(ctx, c)
	}
	if err != nil {
		return err
	}
	renewed := *c
	renewed.Renewed = metadata.TimeOf(time.Now())
	renewed.Expires = max(metadata.TimeOf(until)-metadata.Time(says.Issued)+c.Got, renewed.Renewed+1)
	return k.keep(ctx, &renewed)
}

// cancel ends a token of an application that has ended. One that the filesystem does not know is none any more.
func (k *keeper) cancel(ctx context.Context, c *rm.Credential) error {
	t, err := k.r.s.unseal(c)
	if err == nil {
		err = k.r.s.config.Tokens.Cancel(ctx, t)
	}
	if err != nil && !errors.Is(err, metadata.ErrToken) {
		return err
	}
	return k.drop(ctx, c)
}

// credentialed reports whether the containers of an application would find a token.
func (r *reign) credentialed(view *state.View, a *rm.Application) bool {
	return r.keeper == nil || len(view.Credentials(a.ID)) > 0
}

// uncredentialed says why an application's master waits for a token; the zero value: it does not.
func (r *reign) uncredentialed(view *state.View, id rm.ApplicationID) scheduler.Waiting {
	a := view.Application(id)
	if r.keeper == nil || a == nil || !a.WantsMaster() || r.credentialed(view, a) {
		return scheduler.Waiting{}
	}
	k := r.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	text := fmt.Sprintf("waits for a delegation token of the filesystem for user %s", a.User)
	switch f := k.failed[errand{app: id}]; {
	case f != nil:
		text = fmt.Sprintf("%s: %v", text, f.why)
	case time.Since(a.Submitted.Time()) < tokenQuiet:
		return scheduler.Waiting{}
	}
	return scheduler.Waiting{App: id, Reason: rm.Reason{Code: rm.ReasonCredential, Text: text}}
}
