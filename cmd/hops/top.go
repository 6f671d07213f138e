package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
)

func topCommand() *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "what the cluster does, as `yarn top` shows it: again and again at a terminal, once into a pipe",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "delay", Value: 3, Usage: "at a terminal: `SECONDS` from one picture to the next"},
			&cli.StringFlag{Name: "queues", Usage: "applications of `QUEUES` alone, with commas"},
			&cli.StringFlag{Name: "users", Usage: "applications of `USERS` alone, with commas"},
			&cli.StringFlag{Name: "types", Usage: "applications of `TYPES` alone, with commas"},
			&cli.IntFlag{Name: "rows", Usage: "`N` applications at most; 0: all"},
			confFlag(), userFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.Int("delay") < 1 || c.Int("delay") > 86400 || c.Int("rows") < 0 {
				return fail(exitYarn, "top: -delay is 1 to 86400, -rows 0 or more")
			}
			cl, err := dial(c)
			if err != nil {
				return yarnError(err)
			}
			defer cl.Close()
			again := isTerminal(c.App.Writer)
			for {
				var picture strings.Builder
				if err := top(c, cl, &picture); err != nil {
					return yarnError(err)
				}
				if !again {
					_, err := io.WriteString(c.App.Writer, picture.String())
					return err
				}
				fmt.Fprint(c.App.Writer, "\x1b[H\x1b[2J", picture.String())
				select {
				case <-c.Context.Done():
					return nil
				case <-time.After(time.Duration(c.Int("delay")) * time.Second):
				}
			}
		},
	}
}

// yarnMetrics is /ws/v1/cluster/metrics.
type yarnMetrics struct {
	Submitted       int64 `json:"appsSubmitted"`
	Completed       int64 `json:"appsCompleted"`
	Pending         int64 `json:"appsPending"`
	Running         int64 `json:"appsRunning"`
	Failed          int64 `json:"appsFailed"`
	Killed          int64 `json:"appsKilled"`
	AvailableMB     int64 `json:"availableMB"`
	AllocatedMB     int64 `json:"allocatedMB"`
	PendingMB       int64 `json:"pendingMB"`
	ReservedMB      int64 `json:"reservedMB"`
	AvailableVCores int64 `json:"availableVirtualCores"`
	AllocatedVCores int64 `json:"allocatedVirtualCores"`
	PendingVCores   int64 `json:"pendingVirtualCores"`
	ReservedVCores  int64 `json:"reservedVirtualCores"`
	Containers      int64 `json:"containersAllocated"`
	WantContainers  int64 `json:"containersPending"`
	HeldContainers  int64 `json:"containersReserved"`

	Nodes          int64 `json:"totalNodes"`
	Active         int64 `json:"activeNodes"`
	Unhealthy      int64 `json:"unhealthyNodes"`
	Decommissioned int64 `json:"decommissionedNodes"`
	Lost           int64 `json:"lostNodes"`
	Rebooted       int64 `json:"rebootedNodes"`

	Used  yarnResource `json:"totalUsedResourcesAcrossPartition"`
	Total yarnResource `json:"totalClusterResourcesAcrossPartition"`
}

// rest are the amounts of the resources that have no figures of their own: GPUs first.
func (m *yarnMetrics) rest(w io.Writer) {
	for i, r := range m.Total.Informations.List {
		if r.Name == "memory-mb" || r.Name == "vcores" || i >= len(m.Used.Informations.List) {
			continue
		}
		used := int64(0)
		for _, u := range m.Used.Informations.List {
			if u.Name == r.Name {
				used = u.Value
			}
		}
		fmt.Fprintf(w, "Queue(s) %s: %d available, %d allocated\n", r.Name, r.Value-used, used)
	}
}

func top(c *cli.Context, cl *client.Client, w io.Writer) error {
	var info struct {
		Info struct{ StartedOn int64 } `json:"clusterInfo"`
	}
	if err := yarn(c, cl, "info", &info); err != nil {
		return err
	}
	var metrics struct {
		M yarnMetrics `json:"clusterMetrics"`
	}
	if err := yarn(c, cl, "metrics", &metrics); err != nil {
		return err
	}
	var answer struct{ Apps struct{ App []yarnApp } }
	if err := yarn(c, cl, "apps?states=RUNNING&deSelects=resourceRequests,resourceInfo,timeouts", &answer); err != nil {
		return err
	}
	apps := slices.DeleteFunc(answer.Apps.App, func(a yarnApp) bool {
		other := func(flag string, values ...string) bool {
			wanted := words(c.String(flag))
			return len(wanted) > 0 && !slices.ContainsFunc(values, func(v string) bool { return slices.Contains(wanted, v) })
		}
		return other("queues", a.Queue, a.Queue[strings.LastIndexByte(a.Queue, '.')+1:]) || other("users", a.User) || other("types", a.Type)
	})
	slices.SortStableFunc(apps, func(a, b yarnApp) int { return cmp.Compare(b.AllocatedMB, a.AllocatedMB) })
	users := map[string]bool{}
	for _, a := range apps {
		users[a.User] = true
	}
	now := time.Now()
	up := now.Sub(time.UnixMilli(info.Info.StartedOn))
	queues := strings.Join(words(c.String("queues")), ",")
	m := metrics.M
	fmt.Fprintf(w, "YARN top - %s, up %dd, %d:%d, %d active users, queue(s): %s\n", now.Format("15:04:05"), int(up.Hours())/24, int(up.Hours())%24, int(up.Minutes())%60, len(users), cmp.Or(queues, "root"))
	fmt.Fprintf(w, "NodeManager(s): %d total, %d active, %d unhealthy, %d decommissioned, %d lost, %d rebooted\n", m.Nodes, m.Active, m.Unhealthy, m.Decommissioned, m.Lost, m.Rebooted)
	fmt.Fprintf(w, "Queue(s) Applications: %d running, %d submitted, %d pending, %d completed, %d killed, %d failed\n", m.Running, m.Submitted, m.Pending, m.Completed, m.Killed, m.Failed)
	fmt.Fprintf(w, "Queue(s) Mem(GB): %d available, %d allocated, %d pending, %d reserved\n", m.AvailableMB>>10, m.AllocatedMB>>10, m.PendingMB>>10, m.ReservedMB>>10)
	fmt.Fprintf(w, "Queue(s) VCores: %d available, %d allocated, %d pending, %d reserved\n", m.AvailableVCores, m.AllocatedVCores, m.PendingVCores, m.ReservedVCores)
	m.rest(w)
	fmt.Fprintf(w, "Queue(s) Containers: %d allocated, %d pending, %d reserved\n\n", m.Containers, m.WantContainers, m.HeldContainers)
	const pattern = "%31s %-10s %10s %10s %5s %7s %7s %7s %7s %7s %7s %10s %10s %6s %10s %s\n"
	fmt.Fprintf(w, pattern, "APPLICATIONID", "USER", "TYPE", "QUEUE", "PRIOR", "#CONT", "#RCONT", "VCORES", "RVCORES", "MEM", "RMEM", "VCORESECS", "MEMSECS", "%PROGR", "TIME", "NAME")
	for i, a := range apps {
		if n := c.Int("rows"); n > 0 && i == n {
			break
		}
		elapsed := time.Duration(a.ElapsedTime) * time.Millisecond
		text := func(n int64) string { return fmt.Sprint(n) }
		fmt.Fprintf(w, pattern, a.ID, a.User, a.Type, a.Queue[strings.LastIndexByte(a.Queue, '.')+1:], text(int64(a.Priority)), text(a.RunningContainers), "0",
			text(a.AllocatedVCores), text(a.ReservedVCores), fmt.Sprintf("%dG", a.AllocatedMB>>10), fmt.Sprintf("%dG", a.ReservedMB>>10),
			text(a.VcoreSeconds), text(a.MemorySeconds>>10), fmt.Sprintf("%.2f", a.Progress),
			fmt.Sprintf("%02d:%02d:%02d:%02d", int(elapsed.Hours())/24, int(elapsed.Hours())%24, int(elapsed.Minutes())%60, int(elapsed.Seconds())%60), a.Name)
	}
	return nil
}
