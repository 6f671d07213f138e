package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gohops/hops/internal/security"
	rm "github.com/gohops/hops/resourcemanager"
)

// Containers run as the user of the servers. Another local user who could submit would have that user's account.
func TestOtherLocalUsersSubmitOnlyWhereTheyAreInvited(t *testing.T) {
	const stranger = "4294000000" // a user without an account is called by the number
	c := newTestCluster(t, 1, func(config *Config) {
		config.Door = security.NewDoor(security.Config{Owner: func(security.ConnAddrs) (uint32, error) { return 4294000000, nil }})
		config.Queues = rm.QueueConfig{Children: map[string]rm.QueueConfig{
			"default": {Capacity: "40%"}, "guests": {Capacity: "30%", Submit: []string{stranger}}, "all": {Capacity: "20%", Submit: []string{"*"}},
			"ours": {Capacity: "10%", Submit: []string{"ann"}},
		}}
	})
	c.leader()
	for queue, want := range map[string]int{"default": 403, "ours": 403, "guests": 201, "all": 201} {
		document := map[string]any{"kind": "command", "queue": queue, "argv": []string{"id"}}
		var answer map[string]any
		if code, _ := c.http(http.MethodPost, "/api/v1/jobs", stranger, document, &answer); code != want {
			t.Errorf("a job to %s: %d %v, want %d", queue, code, answer, want)
		}
	}
	c.raise()
	var id map[string]any
	c.http(http.MethodPost, "/ws/v1/cluster/apps/new-application", stranger, nil, &id)
	document := map[string]any{
		"application-id": id["application-id"], "application-name": "x", "application-type": "YARN", "queue": "default",
		"am-container-spec": map[string]any{"commands": map[string]string{"command": "id"}}, "resource": map[string]int{"memory": 64, "vCores": 1},
	}
	var answer struct{ RemoteException struct{ Message string } }
	if code, _ := c.http(http.MethodPost, "/ws/v1/cluster/apps", stranger, document, &answer); code != 400 || !strings.Contains(answer.RemoteException.Message, "acl_submit does not name them") {
		t.Errorf("YARN's way: %d %v", code, answer)
	}
}
