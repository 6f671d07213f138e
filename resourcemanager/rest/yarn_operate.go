package rest

import (
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"strings"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// yarnResize sets memory and vcores of a node. (In stock YARN anybody may, and the node's other resources, GPUs too, are gone after it: here
// superusers may, and the rest stays.) What runs there beyond goes on, so that overCommitTimeout can only be -1.
func (q *request) yarnResize() {
	id := rm.NodeID(q.r.PathValue("node"))
	if !strings.Contains(string(id), ":") {
		q.illegalArgument(fmt.Sprintf("Invalid NodeId [%s]. Expected host:port", id))
		return
	}
	n := q.view.Node(id)
	if n == nil {
		q.notFoundYARN("nodeId, " + string(id) + ", is not found")
		return
	}
	var body struct {
		Resource *yarnResource `json:"resource"`
		Timeout  *int          `json:"overCommitTimeout"`
	}
	if !q.read("resourceOption", jersey.Bare, &body) || !q.operated() {
		return
	}
	switch r := body.Resource; {
	case r == nil || r.Memory < 0 || r.VCores < 0 || r.Memory > 1<<30 || r.VCores > 1<<20:
		q.badRequest("java.lang.Exception: resource is missing or out of range: give memory in MiB and vCores")
		return
	case body.Timeout != nil && *body.Timeout >= 0:
		q.badRequest(fmt.Sprintf("java.lang.Exception: overCommitTimeout %d is not supported: what runs on the node goes on, -1", *body.Timeout))
		return
	}
	want := rm.Resource{Memory: body.Resource.Memory * rm.MiB, VCores: body.Resource.VCores}
	if err := q.Operator.Resize(q.r.Context(), q.caller, id, want); err != nil {
		q.fail(err)
		return
	}
	now := n.Capacity
	now.Memory, now.VCores = want.Memory, want.VCores
	q.answer("resourceInfo", jersey.Natural, resource(now))
}

// noDelegationToken is what YARN answers to who did not come by Kerberos. The resource manager gives no tokens to users by HTTP.
func (q *request) noDelegationToken() {
	jersey.Text(q.w, q.r, http.StatusForbidden,
		"Delegation token operations can only be carried out on a Kerberos authenticated channel. Expected auth type is kerberos, got type SIMPLE")
}

// Reservations (YARN-1051): no queue takes any, and that is answered as YARN does for such a queue.

type reservationBody struct {
	Queue string `json:"queue"`
	ID    string `json:"reservation-id"`
}

// newReservation hands out an id, of the same sequence as those of applications.
func (q *request) newReservation() {
	id, err := q.Cluster.NewApplication(q.r.Context())
	if err != nil {
		q.fail(err)
		return
	}
	q.answer("new-reservation", jersey.Mapped, struct {
		ID string `json:"reservation-id"`
	}{"reservation_" + strings.TrimPrefix(id.String(), "application_")})
}

func (q *request) notReservable(queue string) {
	text := "The queue is not specified. Please try again with a valid reservable queue."
	if queue != "" {
		text = fmt.Sprintf("The specified queue: %.200s is not managed by reservation system. Please try again with a valid reservable queue.", queue)
	}
	q.badRequest("java.lang.Exception: " + text)
}

func (q *request) submitReservation() {
	var body reservationBody
	if q.read("reservation-submission-context", jersey.Bare, &body) {
		q.notReservable(body.Queue)
	}
}

// changeReservation answers to an update or a deletion: there is no reservation of any name.
func (q *request) changeReservation() {
	var body reservationBody
	if !q.read("reservation-update-context", jersey.Bare, &body) {
		return
	}
	text := "Missing reservation id. Please try again by specifying a reservation id."
	if body.ID != "" {
		text = fmt.Sprintf("The specified reservation with ID: %.100s is unknown. Please try again with a valid reservation.", body.ID)
	}
	q.badRequest("java.lang.Exception: " + text)
}

func (q *request) listReservations() { q.notReservable(q.r.URL.Query().Get("queue")) }

// property is one of /conf.
type property struct {
	Key      string `json:"key"`
	Value    string `json:"value"`
	Final    bool   `json:"isFinal"`
	Resource string `json:"resource"`
}

// xmlProperty is the same in XML.
type xmlProperty struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Final  bool   `json:"final"`
	Source string `json:"source"`
}

// conf answers what YARN's clients ask for of the configuration, as far as there is something alike here; ?name= one of it.
func (q *request) conf() {
	low, _ := q.Cluster.Limits()
	high, _ := q.most()
	list := []property{}
	for _, p := range []struct {
		key   string
		value any
	}{
		{"yarn.acl.enable", true},
		{"yarn.cluster.max-application-priority", rm.MaxPriority},
		{"yarn.log-aggregation-enable", true},
		{"yarn.node-labels.enabled", true},
		{"yarn.resourcemanager.scheduler.class", "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"},
		{"yarn.scheduler.maximum-allocation-mb", high.MemoryMiB()},
		{"yarn.scheduler.maximum-allocation-vcores", high.VCores},
		{"yarn.scheduler.minimum-allocation-mb", low.MemoryMiB()},
		{"yarn.scheduler.minimum-allocation-vcores", low.VCores},
		{"yarn.webapp.ui2.enable", false},
	} {
		list = append(list, property{p.key, fmt.Sprint(p.value), false, "hops"})
	}
	if name := q.r.URL.Query().Get("name"); name != "" {
		for _, p := range list {
			if p.Key == name {
				q.configuration([]property{p}, true)
				return
			}
		}
		q.text(http.StatusNotFound, fmt.Sprintf("Property %.200s not found\n", name))
		return
	}
	q.configuration(list, false)
}

// configuration answers properties as Hadoop's ConfServlet does: in XML unless JSON is asked for.
func (q *request) configuration(list []property, one bool) {
	o := jersey.Object{Root: "properties", Dialect: jersey.Natural, Value: list}
	if one {
		o = jersey.Object{Root: "property", Dialect: jersey.Natural, Value: list[0]}
	}
	encode, kind := o.JSON, jersey.JSONType
	if !strings.Contains(q.r.Header.Get("Accept"), "application/json") || q.r.URL.Query().Get("format") == "xml" {
		var out struct {
			List []xmlProperty `json:"property"`
		}
		for _, p := range list {
			out.List = append(out.List, xmlProperty{p.Key, p.Value, p.Final, p.Resource})
		}
		encode, kind = jersey.Object{Root: "configuration", Value: out}.XML, "text/xml; charset=utf-8"
	}
	b, err := encode()
	if err != nil {
		q.fail(metadata.Errorf(metadata.ErrCorrupt, "%v", err))
		return
	}
	q.w.Header().Set("Content-Type", kind)
	q.w.Write(b)
}

// logLevel is Hadoop's page of that name (LogLevel): which lines are logged. It is read; the level is set where the server is started.
func (q *request) logLevel() {
	p := q.r.URL.Query()
	if p.Get("level") != "" {
		q.text(http.StatusForbidden, "The level is set where the server is started (--log-level), not here.\n")
		return
	}
	level := "ERROR"
	for _, l := range []struct {
		name  string
		level slog.Level
	}{{"WARN", slog.LevelWarn}, {"INFO", slog.LevelInfo}, {"DEBUG", slog.LevelDebug}} {
		if q.Logger.Enabled(q.r.Context(), l.level) {
			level = l.name
		}
	}
	q.w.Header().Set("Content-Type", "text/html;charset=utf-8")
	fmt.Fprintf(q.w, "<!DOCTYPE html><html><head><title>Log Level</title></head><body><h1>Log Level</h1>\nSubmitted Class Name: <b>%s</b><br />\nEffective Level: <b>%s</b><br />\n</body></html>\n",
		html.EscapeString(p.Get("log")), level)
}
