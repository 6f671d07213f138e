package rest

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/internal/jersey"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// schedConf is a change of YARN's scheduler configuration (SchedConfUpdateInfo).
type schedConf struct {
	Add    []queueParams     `json:"add-queue"`
	Remove []string          `json:"remove-queue"`
	Update []queueParams     `json:"update-queue"`
	Global map[string]string `json:"global-updates"`
}

type queueParams struct {
	Name   string            `json:"queue-name"`
	Params map[string]string `json:"params"`
}

// schedPrefix begins the names of YARN's CapacityScheduler.
const schedPrefix = "yarn.scheduler.capacity."

// word is one property of a queue, after its path: how it is written into a configuration and read from it.
type word struct {
	name string
	set  func(c *rm.QueueConfig, value string) error
	get  func(c rm.QueueConfig) string // empty: it is not set
}

func setNumber[T int | float64](into *T, value string, parse func(string) (T, error)) error {
	n, err := parse(strings.TrimSpace(value))
	if err == nil {
		*into = max(n, 0) // -1 is none, as 0 is
	}
	return err
}

func parseFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

func zeroless[T int | float64](n T) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// yarnCapacity reads a capacity as YARN writes it: a bare number is a percentage, -1 is none.
func yarnCapacity(into *string, value string) error {
	value = strings.TrimSpace(value)
	if value == "-1" || value == "" {
		*into = ""
		return nil
	}
	c, err := rm.ParseCapacity(value)
	*into = c.String()
	return err
}

func writtenCapacity(s string) string { return strings.TrimSuffix(s, "%") }

// yarnList reads "users groups", each with commas.
func yarnList(users, groups *[]string, value string) error {
	split := func(s string) (out []string) {
		for name := range strings.SplitSeq(s, ",") {
			if name = strings.TrimSpace(name); name != "" {
				out = append(out, name)
			}
		}
		return out
	}
	u, g, _ := strings.Cut(strings.TrimRight(value, " "), " ")
	*users, *groups = split(u), split(g)
	return nil
}

func writtenList(users, groups []string) string {
	if len(users)+len(groups) == 0 {
		return ""
	}
	if slices.Contains(users, "*") {
		return "*"
	}
	return strings.TrimRight(strings.Join(users, ",")+" "+strings.Join(groups, ","), " ")
}

func seconds(into *string, value string) error {
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
	if err == nil {
		*into = ""
		if n > 0 {
			*into = (time.Duration(n) * time.Second).String()
		}
	}
	return err
}

func writtenSeconds(s string) string {
	d, err := time.ParseDuration(s)
	if err != nil {
		return ""
	}
	return strconv.FormatInt(int64(d/time.Second), 10)
}

func part100(s string, scale float64) string {
	f, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(s), "%")), 64)
	if err != nil {
		return ""
	}
	return strconv.FormatFloat(f*scale, 'g', -1, 64)
}

// words are those of YARN's properties of queues that mean something here.
var words = []word{
	{"capacity", func(c *rm.QueueConfig, v string) error { return yarnCapacity(&c.Capacity, v) }, func(c rm.QueueConfig) string { return writtenCapacity(c.Capacity) }},
	{"maximum-capacity", func(c *rm.QueueConfig, v string) error { return yarnCapacity(&c.Max, v) }, func(c rm.QueueConfig) string { return writtenCapacity(c.Max) }},
	{"acl_submit_applications", func(c *rm.QueueConfig, v string) error { return yarnList(&c.Submit, &c.SubmitGroups, v) }, func(c rm.QueueConfig) string { return writtenList(c.Submit, c.SubmitGroups) }},
	{"acl_administer_queue", func(c *rm.QueueConfig, v string) error { return yarnList(&c.Administer, &c.AdministerGroups, v) }, func(c rm.QueueConfig) string { return writtenList(c.Administer, c.AdministerGroups) }},
	{"state", func(c *rm.QueueConfig, v string) error { c.State = rm.QueueState(strings.ToUpper(v)); return nil }, func(c rm.QueueConfig) string { return string(c.State) }},
	{"minimum-user-limit-percent", func(c *rm.QueueConfig, v string) error { c.UserLimit = strings.TrimSuffix(v, "%") + "%"; return nil }, func(c rm.QueueConfig) string { return part100(c.UserLimit, 1) }},
	{"user-limit-factor", func(c *rm.QueueConfig, v string) error { return setNumber(&c.UserLimitFactor, v, parseFloat) }, func(c rm.QueueConfig) string { return zeroless(c.UserLimitFactor) }},
	{"maximum-applications", func(c *rm.QueueConfig, v string) error { return setNumber(&c.MaxApplications, v, strconv.Atoi) }, func(c rm.QueueConfig) string { return zeroless(c.MaxApplications) }},
	{"maximum-am-resource-percent", setMasterShare, func(c rm.QueueConfig) string { return part100(c.MasterShare, 0.01) }},
	{"priority", func(c *rm.QueueConfig, v string) error { return setNumber(&c.Priority, v, strconv.Atoi) }, func(c rm.QueueConfig) string { return zeroless(c.Priority) }},
	{"ordering-policy", func(c *rm.QueueConfig, v string) error { c.Ordering = v; return nil }, func(c rm.QueueConfig) string { return c.Ordering }},
	{"disable_preemption", setPreemption, func(c rm.QueueConfig) string {
		if c.PreemptionDisabled {
			return "true"
		}
		return ""
	}},
	{"intra-queue-preemption.disable_preemption", setPreemptByPriority, func(c rm.QueueConfig) string {
		if c.PreemptByPriority {
			return "false"
		}
		return ""
	}},
	{"cells", func(c *rm.QueueConfig, v string) (err error) { c.Cells, err = rm.ParseCells(v); return err }, func(c rm.QueueConfig) string { return rm.FormatCells(c.Cells) }},
	{"default-application-priority", func(c *rm.QueueConfig, v string) error { return setNumber(&c.DefaultPriority, v, strconv.Atoi) }, func(c rm.QueueConfig) string { return zeroless(c.DefaultPriority) }},
	{"maximum-application-lifetime", func(c *rm.QueueConfig, v string) error { return seconds(&c.MaxLifetime, v) }, func(c rm.QueueConfig) string { return writtenSeconds(c.MaxLifetime) }},
	{"default-application-lifetime", func(c *rm.QueueConfig, v string) error { return seconds(&c.DefaultLifetime, v) }, func(c rm.QueueConfig) string { return writtenSeconds(c.DefaultLifetime) }},
	{"auto-queue-creation-v2.enabled", setAutoCreate, func(c rm.QueueConfig) string {
		if c.AutoCreate != nil {
			return "true"
		}
		return ""
	}},
}

func setMasterShare(c *rm.QueueConfig, v string) error {
	f, err := parseFloat(strings.TrimSpace(v))
	if err == nil {
		c.MasterShare = strconv.FormatFloat(100*f, 'g', -1, 64) + "%"
	}
	return err
}

func setPreemption(c *rm.QueueConfig, v string) (err error) {
	c.PreemptionDisabled, err = strconv.ParseBool(strings.TrimSpace(v))
	return err
}

func setPreemptByPriority(c *rm.QueueConfig, v string) error {
	off, err := strconv.ParseBool(strings.TrimSpace(v))
	c.PreemptByPriority = err == nil && !off
	return err
}

func setAutoCreate(c *rm.QueueConfig, v string) error {
	on, err := strconv.ParseBool(strings.TrimSpace(v))
	switch {
	case err != nil:
	case !on:
		c.AutoCreate = nil
	case c.AutoCreate == nil:
		c.AutoCreate = &rm.QueueConfig{}
	}
	return err
}

// template begins the properties of queues that are made.
const templatePrefix = "auto-queue-creation-v2.leaf-template."

// setWord changes one property of a queue.
func setWord(c *rm.QueueConfig, path, name, value string) error {
	into, key := c, name
	if rest, ok := strings.CutPrefix(name, templatePrefix); ok {
		made := rm.QueueConfig{}
		if c.AutoCreate != nil {
			made = *c.AutoCreate
		}
		c.AutoCreate = &made
		into, key = &made, rest
	}
	for _, w := range words {
		if w.name == key {
			if err := w.set(into, value); err != nil {
				return metadata.Errorf(metadata.ErrInvalidArgument, "%s%s.%s: %.100q: %v", schedPrefix, path, name, value, err)
			}
			return nil
		}
	}
	return metadata.Errorf(metadata.ErrUnsupported, "%s%s.%s is not supported", schedPrefix, path, name)
}

// apply is the configuration after a change. As in YARN, queues are taken away first, then come new ones and changes, and a change of a
// queue that there is not is none.
func (s *schedConf) apply(c rm.QueueConfig) (rm.QueueConfig, error) {
	var err error
	for _, path := range s.Remove {
		c, err = c.Edit(path, func(old rm.QueueConfig, exists bool) (rm.QueueConfig, bool, error) {
			switch {
			case !exists:
				return old, false, metadata.Errorf(metadata.ErrNotExist, "Queue %s not found", path)
			case old.State != rm.QueueStopped:
				return old, false, metadata.Errorf(metadata.ErrExist, "%s cannot be deleted from the capacity scheduler configuration, as the queue is not yet in stopped state. Current State : %s", path, rm.QueueRunning)
			}
			return old, false, nil
		})
		if err != nil {
			return c, err
		}
	}
	set := func(list []queueParams, create bool) error {
		for _, p := range list {
			if _, exists := c.QueueAt(p.Name); !exists && !create {
				continue
			}
			c, err = c.Edit(p.Name, func(q rm.QueueConfig, exists bool) (rm.QueueConfig, bool, error) {
				if exists && create {
					return q, true, metadata.Errorf(metadata.ErrExist, "Can't add already existing queue %s", p.Name)
				}
				for _, name := range slices.Sorted(maps.Keys(p.Params)) {
					if err := setWord(&q, p.Name, name, p.Params[name]); err != nil {
						return q, true, err
					}
				}
				return q, true, nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err = set(s.Add, true); err == nil {
		err = set(s.Update, false)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Global)) {
		if err != nil {
			break
		}
		key, ok := strings.CutPrefix(name, schedPrefix)
		if !ok || key != "maximum-applications" && key != "maximum-am-resource-percent" { // those of the root hold for all
			return c, metadata.Errorf(metadata.ErrUnsupported, "%s is not supported", name)
		}
		err = setWord(&c, "root", key, s.Global[name])
	}
	return c, err
}

type schedProperty struct {
	Name  string `json:"name" xml:"name"`
	Value string `json:"value" xml:"value"`
}

// schedProperties writes a configuration as YARN's properties, in the order of their names.
func schedProperties(c rm.QueueConfig) []schedProperty {
	var out []schedProperty
	var walk func(path string, q rm.QueueConfig)
	walk = func(path string, q rm.QueueConfig) {
		add := func(name, value string) { out = append(out, schedProperty{schedPrefix + path + "." + name, value}) }
		for _, w := range words {
			if v := w.get(q); v != "" {
				add(w.name, v)
			}
			if q.AutoCreate != nil {
				if v := w.get(*q.AutoCreate); v != "" {
					add(templatePrefix+w.name, v)
				}
			}
		}
		if len(q.Children) == 0 {
			return
		}
		names := slices.Sorted(maps.Keys(q.Children))
		add("queues", strings.Join(names, ","))
		for _, name := range names {
			walk(path+"."+name, q.Children[name])
		}
	}
	walk("root", c)
	out = append(out, schedProperty{schedPrefix + "resource-calculator", "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"})
	slices.SortFunc(out, func(a, b schedProperty) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (q *request) schedulerConf() {
	q.json(map[string][]schedProperty{"property": schedProperties(q.queues().Config())})
}

func (q *request) schedulerConfVersion() {
	version, _, _ := q.view.QueuesVersion()
	q.json(map[string]string{"versionID": strconv.FormatUint(version, 10)})
}

// changeSchedConf makes or tries a change; false: the request has been answered. What is wrong with the change is a text.
func (q *request) changeSchedConf(dry bool) (done QueueChange, wrong string, ok bool) {
	s := &schedConf{}
	if !q.read("sched-conf", jersey.Bare, s) || !q.operated() {
		return done, "", false
	}
	done, err := q.Operator.ChangeQueues(q.r.Context(), q.caller, QueueOptions{DryRun: dry}, s.apply)
	switch {
	case err == nil:
		return done, "", true
	case errors.Is(err, metadata.ErrInvalidArgument), errors.Is(err, metadata.ErrExist), errors.Is(err, metadata.ErrNotExist), errors.Is(err, metadata.ErrUnsupported):
		return done, "Failed to re-init queues : " + schedMistake(err), true
	}
	q.fail(err)
	return done, "", false
}

// schedMistake is an error in YARN's words, where it has some.
func schedMistake(err error) string {
	var sum *rm.SumError
	if errors.As(err, &sum) {
		name := sum.Queue[strings.LastIndexByte(sum.Queue, '.')+1:]
		return fmt.Sprintf("Illegal capacity sum of %s for children of queue %s for label=. It should be either 0 or 1.0", javaFloat(sum.Percent/100), name)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// javaFloat is how Java prints a float.
func javaFloat(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 32)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func (q *request) putSchedulerConf() {
	switch _, wrong, ok := q.changeSchedConf(false); {
	case !ok:
	case wrong != "":
		q.plain(http.StatusBadRequest, wrong)
	default:
		q.plain(http.StatusOK, "Configuration change successfully applied.")
	}
}

func (q *request) validateSchedulerConf() {
	switch done, wrong, ok := q.changeSchedConf(true); {
	case !ok:
	case wrong != "":
		q.plain(http.StatusBadRequest, "CapacityScheduler configuration validation failed:java.io.IOException: "+wrong)
	default:
		q.json(map[string][]schedProperty{"property": schedProperties(*done.Queues)})
	}
}

// formatSchedulerConf makes the queues of this member's file count again, what YARN does with its store.
func (q *request) formatSchedulerConf() {
	if !q.operated() {
		return
	}
	if _, err := q.Operator.RefreshQueues(q.r.Context(), q.caller, QueueOptions{}); err != nil {
		q.plain(http.StatusBadRequest, strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	q.plain(http.StatusOK, "Configuration under store successfully formatted.")
}
