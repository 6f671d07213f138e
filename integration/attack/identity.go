package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// vanishOrder names the doors and the user to be there.
type vanishOrder struct {
	IPC, HTTP, Manager string
	As                 string
	Tries              int
}

// vanish asks for something in another user's name and is gone when the server looks whose the connection is. Requests
// are longer than 536 bytes, so that they are acknowledged at once.
func vanish(_ context.Context, _ *part, o vanishOrder) (sent, error) {
	var total sent
	filler := strings.Repeat("x", 200)
	for i := range o.Tries {
		path := fmt.Sprintf("/owned-ipc-%d/%s/%s/%s", i, filler, filler, filler)
		ipc := append(greeting(o.As), callFrame(0, "mkdirs", &hadooppb.MkdirsRequestProto{
			Src: &path, Masked: &hadooppb.FsPermissionProto{Perm: new(uint32(0o755))}, CreateParent: new(true),
		})...)
		job := fmt.Sprintf(`{"name":"owned-%d","argv":["true"],"resources":{"memory":"16MiB","vcores":1}}`, i)
		// Bytes behind the request keep a server of HTTP from noticing the end before it has answered.
		const more = "GET / HTTP/1.1\r\n"
		put := fmt.Sprintf("PUT /webhdfs/v1/owned-http-%d?op=MKDIRS&user.name=%s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\nX-Filler: %s\r\n\r\n%s",
			i, o.As, o.HTTP, strings.Repeat(filler, 4), more)
		post := fmt.Sprintf("POST /api/v1/jobs?user.name=%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nX-Filler: %s\r\n\r\n%s%s",
			o.As, o.Manager, len(job), strings.Repeat(filler, 4), job, more)
		for _, one := range []struct{ addr, request string }{{o.IPC, string(ipc)}, {o.HTTP, put}, {o.Manager, post}} {
			if err := sendAndVanish(one.addr, []byte(one.request)); err != nil {
				return total, err
			}
			total.Connections++
			total.Bytes += int64(len(one.request))
		}
	}
	return total, nil
}

// closedSocket: the kernel says user 0 of a socket that its process has closed.
func closedSocket(ctx context.Context, s *scene, r *result) error {
	o := vanishOrder{IPC: s.namenode(0).IPC, HTTP: s.namenode(0).HTTP, Manager: s.manager().HTTP, As: ownName(), Tries: 40}
	var total sent
	if err := s.once(ctx, "vanish", o, &total); err != nil {
		return err
	}
	r.sent(total)
	pause(ctx, time.Second) // a request that is under way is answered in less
	entries, err := s.fs.List(ctx, "/")
	if err != nil {
		return err
	}
	jobs, err := s.c.Jobs().List(ctx)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, e := range entries {
		for _, door := range []string{"ipc", "http"} {
			if strings.HasPrefix(e.Name, "owned-"+door) {
				count[door]++
			}
		}
	}
	for _, j := range jobs {
		if strings.HasPrefix(j.Name, "owned-") {
			count["jobs"]++
		}
	}
	r.found("as %s: %d of %d mkdirs over IPC, %d over WebHDFS, %d jobs", o.As, count["ipc"], o.Tries, count["http"], count["jobs"])
	if n := count["ipc"] + count["http"] + count["jobs"]; n > 0 {
		r.missed("%d requests were %s's", n, o.As)
	}
	return nil
}
