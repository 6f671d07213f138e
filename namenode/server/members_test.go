package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata/raftstore"
)

// operate sends a request to the operator's door.
func (m *member) operate(t *testing.T, method, path, user string) (status int, why string) {
	t.Helper()
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+m.http+path+separator+"user.name="+user, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var body struct{ Error string }
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, body.Error
}

// handOver has leadership handed over until who leads is one that is wanted: as often as it takes, because who is behind at that moment does not get it.
func (c *cluster) handOver(t *testing.T, wanted func(*member) bool, to string) (lead *member) {
	t.Helper()
	path, why := "/api/v1/leader", ""
	if to != "" {
		path += "?to=" + to
	}
	eventually(t, "leadership is handed over", func() bool {
		if lead = c.leader(); wanted(lead) {
			return true
		}
		status, said := lead.operate(t, "POST", path, lead.config.Door.Daemon())
		if status != http.StatusOK && said != why {
			why = said
			t.Logf("transfer: %d %s", status, why)
		}
		return false
	})
	return lead
}

func TestOperatorReplacesANamenode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.leader()
	super := lead.config.Door.Daemon()
	// nn3 is gone, nn4 takes its place.
	if err := c.root().Mkdirs(t.Context(), "/a", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if lead == c.nodes[2] {
		lead = c.handOver(t, func(m *member) bool { return m != c.nodes[2] }, "nn1")
	}
	refused := func(status int, words, method, path, user string) {
		t.Helper()
		if got, why := lead.operate(t, method, path, user); got != status || !strings.Contains(why, words) {
			t.Fatalf("%s %s by %s: %d %q, want %d and %q", method, path, user, got, why, status, words)
		}
	}
	refused(403, "alice is not a superuser", "DELETE", "/api/v1/namenodes/nn3", "alice")
	refused(400, "nn9 is not a member", "DELETE", "/api/v1/namenodes/nn9", super)
	refused(400, "want host:port", "PUT", "/api/v1/namenodes/nn4?raft=somewhere", super)
	refused(400, "nn9 is no voter", "POST", "/api/v1/leader?to=nn9", super)
	follower := c.nodes[0]
	if follower == lead {
		follower = c.nodes[1]
	}
	if status, why := follower.operate(t, "DELETE", "/api/v1/namenodes/nn3", super); status != http.StatusMisdirectedRequest || !strings.Contains(why, lead.config.ID) {
		t.Fatalf("a follower: %d %q", status, why)
	}

	c.nodes[2].stop()
	addr, err := c.ports.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	c.members = append(c.members, raftstore.Member{ID: "nn4", Address: addr[0]})
	c.nodes = append(c.nodes, nil)
	c.start(3)
	if status, why := lead.operate(t, "PUT", "/api/v1/namenodes/nn4?raft="+addr[0], super); status != 200 {
		t.Fatalf("add: %d %s", status, why)
	}
	c.await(3)
	eventually(t, "nn3 is removed", func() bool { // of the others one may have said nothing for some seconds
		status, why := lead.operate(t, "DELETE", "/api/v1/namenodes/nn3", super)
		if status != 200 && !strings.Contains(why, "which is no majority") {
			t.Fatalf("remove: %d %s", status, why)
		}
		return status == 200
	})
	_, h := lead.page(t, "health")
	var ids []string
	for _, m := range h.Members {
		if !m.Voter {
			t.Errorf("%s has no vote", m.ID)
		}
		ids = append(ids, m.ID)
	}
	if got := strings.Join(ids, " "); got != "nn1 nn2 nn4" {
		t.Fatalf("members: %s", got)
	}
	c.handOver(t, func(m *member) bool { return m == c.nodes[3] }, "nn4")
	eventually(t, "nn4 has everything", func() bool {
		_, err := c.root().Stat(t.Context(), "/a")
		return err == nil
	})
}

func TestLastMajorityIsNotRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	lead := c.leader()
	var others []*member
	for _, m := range c.nodes {
		if m != lead {
			others = append(others, m)
		}
	}
	others[0].stop()
	eventually(t, "removing the one that answers is refused", func() bool {
		status, why := lead.operate(t, "DELETE", "/api/v1/namenodes/"+others[1].config.ID, "nobody-special")
		if status != 403 {
			t.Fatalf("a user without rights: %d %s", status, why)
		}
		_, h := lead.page(t, "health")
		for _, m := range h.Members {
			if m.ID == others[0].config.ID {
				return m.Known && m.Silent > 3
			}
		}
		return false
	})
	status, why := lead.operate(t, "DELETE", "/api/v1/namenodes/"+others[1].config.ID, lead.config.Door.Daemon())
	if status != 400 || !strings.Contains(why, "which is no majority") {
		t.Fatalf("%d %s", status, why)
	}
}
