package scheduler

import (
	"fmt"

	rm "github.com/gohops/hops/resourcemanager"
)

// refusal is a limit that says no, as numbers; text is made of it when somebody reads it.
type refusal struct {
	by                      *queue
	code                    rm.ReasonCode
	user                    string
	resource                string
	need, limit, used, have int64
}

// exceeds finds the resource of which need is more than what a limit leaves.
func exceeds(need, used, limit *rm.Resource) (name string, ok bool) {
	if sum := used.Add(*need); sum.FitsIn(*limit) {
		return "", false
	}
	for _, name := range need.Names() {
		if n := need.Get(name); n > 0 && used.Get(name)+n > limit.Get(name) {
			return name, true
		}
	}
	return "", false
}

func refuse(by *queue, code rm.ReasonCode, name string, need, used, limit *rm.Resource) refusal {
	x := refusal{by: by, code: code, resource: name, need: need.Get(name), used: used.Get(name), limit: limit.Get(name)}
	x.have = max(x.limit-x.used, 0)
	return x
}

// limit checks the limits of a lane's queue and of all above it: their maxima, then those of users, of applications and of masters. The
// zero refusal: they let one unit pass.
func (m *Model) limit(l *lane, w *want) refusal {
	return m.limitIn(l.queue, w.app, &l.shape.form, l.master)
}

func (m *Model) limitIn(q *queue, a *app, f *form, master bool) refusal {
	need := f.Resource
	if f.Unit > 1 {
		need = need.Times(f.Unit)
	}
	for at := q; at != nil; at = at.parent {
		if !at.bounded { // the cluster is its limit, and the nodes guard that
			continue
		}
		if name, no := exceeds(&need, &at.used, &at.maximum); no {
			return refuse(at, rm.ReasonQueueMaximum, name, &need, &at.used, &at.maximum)
		}
	}
	if q.limitsUsers() {
		u := q.userOf(a.User)
		limit, limited := m.userLimit(q, &need)
		if name, no := exceeds(&need, &u.used, &limit); limited && no && !u.used.IsZero() {
			x := refuse(q, rm.ReasonUserLimit, name, &need, &u.used, &limit)
			x.user = a.User
			return x
		}
		if most := q.MaxApplicationsPerUser; most > 0 && master && !a.counted && u.running >= most {
			return refusal{by: q, code: rm.ReasonApplicationLimit, user: a.User, need: 1, limit: int64(most), used: int64(u.running)}
		}
	}
	if !master {
		return refusal{}
	}
	for at := q; at != nil; at = at.parent {
		if most := at.MaxApplications; most > 0 && !a.counted && at.running >= most {
			return refusal{by: at, code: rm.ReasonApplicationLimit, need: 1, limit: int64(most), used: int64(at.running)}
		}
	}
	if q.masters.IsZero() {
		return refusal{}
	}
	share := q.MasterShare
	if share <= 0 {
		share = m.config.MasterShare
	}
	limit := q.maximum.Part(share)
	if name, no := exceeds(&need, &q.masters, &limit); no {
		return refuse(q, rm.ReasonMasterShare, name, &need, &q.masters, &limit)
	}
	return refusal{}
}

// userLimit is what one user of a leaf may have, as in YARN: a part of what the queue has, or of its guarantee if that is more, that is
// equal among the users who want something, but not below the least percentage; and not above the factor of its guarantee.
func (m *Model) userLimit(q *queue, need *rm.Resource) (rm.Resource, bool) {
	limit, limited := m.total, false
	if p := q.UserLimitPercent; p > 0 && p < 100 {
		with := q.used.Add(*need)
		limit, limited = with.Max(q.guaranteed).Part(max(p/100, 1/float64(max(q.asking, 1)))), true
	}
	if f := q.UserLimitFactor; f > 0 {
		most := q.guaranteed.Part(f)
		for _, name := range limit.Names() {
			if most.Get(name) < limit.Get(name) {
				limit, limited = least(limit, most), true
				break
			}
		}
	}
	return limit, limited
}

// least is the smaller of each amount of two that are not negative.
func least(a, b rm.Resource) rm.Resource { return a.Add(b).Sub(a.Max(b)) }

// reason says it in words.
func (x refusal) reason() rm.Reason {
	r := rm.Reason{Code: x.code, Resource: x.resource, Queue: x.by.Path, Need: x.need, Have: x.have}
	switch x.code {
	case rm.ReasonQueueMaximum:
		r.Text = fmt.Sprintf("queue %s may use %s at most and uses %s; this needs %s more",
			r.Queue, amount(r.Resource, x.limit), amount(r.Resource, x.used), amount(r.Resource, r.Need))
	case rm.ReasonMasterShare:
		r.Text = fmt.Sprintf("masters of queue %s may use %s together and use %s; this one needs %s",
			r.Queue, amount(r.Resource, x.limit), amount(r.Resource, x.used), amount(r.Resource, r.Need))
	case rm.ReasonUserLimit:
		r.Text = fmt.Sprintf("one user of queue %s may use %s as long as others wait there, and %s uses %s; this needs %s more",
			r.Queue, amount(r.Resource, x.limit), x.user, amount(r.Resource, x.used), amount(r.Resource, r.Need))
	case rm.ReasonApplicationLimit:
		who := ""
		if x.user != "" {
			who = " of user " + x.user
		}
		r.Text = fmt.Sprintf("%d applications%s run in queue %s, as many as may", x.used, who, r.Queue)
	}
	return r
}

// amount prints n of a resource for people.
func amount(name string, n int64) string {
	switch name {
	case rm.MemoryName:
		if n%rm.MiB != 0 {
			return fmt.Sprintf("%.1f MiB memory", float64(n)/rm.MiB)
		}
		return fmt.Sprintf("%d MiB memory", n/rm.MiB)
	case rm.GPUName:
		if n == 1 {
			return "1 GPU"
		}
		return fmt.Sprintf("%d GPUs", n)
	}
	if profile, ok := rm.ProfileOf(name); ok {
		if n == 1 {
			return "1 MIG instance " + profile
		}
		return fmt.Sprintf("%d MIG instances %s", n, profile)
	}
	if name != rm.VCoresName {
		return fmt.Sprintf("%d of %s", n, name)
	}
	if n == 1 {
		return "1 vcore"
	}
	return fmt.Sprintf("%d vcores", n)
}
