package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// maintenance stops the datanode of a machine for a while; nothing is copied, and its blocks are there when it is back.
func maintenance(ctx context.Context, t *teller) (string, error) {
	sum, err := t.acknowledged(ctx, "m4", "maintained", 4<<20)
	if err != nil {
		return "", err
	}
	leader, err := t.leader(ctx, namenodes)
	if err != nil {
		return "", err
	}
	address := t.m("m4").Address.String()
	admin := func(words ...string) error {
		_, err := t.do(ctx, leader, "hops", append([]string{"hops", "dfsadmin", "-conf", conf}, words...)...)
		return err
	}
	state := func(want string) error {
		return await(ctx, 2*time.Minute, func() error {
			out, err := t.do(ctx, leader, "hops", "hops", "datanode", "list", "--conf", conf)
			if err == nil && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(address)+`:\d+ +`+want+` `).MatchString(out) {
				err = fmt.Errorf("%s is not %s:\n%s", address, want, out)
			}
			return err
		})
	}
	began := time.Now()
	if err := errors.Join(admin("-maintenance", address, "--for", "1h"), state("live, in maintenance")); err != nil {
		return "", err
	}
	ready := time.Since(began)
	if err := errors.Join(t.stop(ctx, "m4", "datanode"), t.same(ctx, "m3", "maintained", sum)); err != nil {
		return "", err
	}
	if err := t.serve(ctx, "m4", false, "datanode"); err != nil {
		return "", err
	}
	if err := errors.Join(admin("-recommission", address), state("live")); err != nil {
		return "", err
	}
	return fmt.Sprintf("m4 could be stopped after %.1f s, its file was read meanwhile; it serves again", ready.Seconds()), nil
}

// live makes sure that the datanodes of machines are.
func (t *teller) live(ctx context.Context, on string, machines ...string) error {
	out, err := t.do(ctx, on, "hops", "hops", "datanode", "list", "--conf", conf)
	for _, m := range machines {
		if err == nil && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(t.m(m).Address.String())+`:\d+ +live `).MatchString(out) {
			err = fmt.Errorf("the datanode of %s is not live:\n%s", m, out)
		}
	}
	return err
}

// trusted lets a namenode believe the lab's network, which it says in its log, on /health and to the doctor, and takes that back.
func trusted(ctx context.Context, t *teller) (string, error) {
	leader, err := t.leader(ctx, namenodes)
	if err != nil {
		return "", err
	}
	on := other(leader)
	plain := func() string { // as a Hadoop client without security asks, from a machine of nobody's
		out, err := t.do(ctx, "alone", user, "python3", "-c", `
import sys, urllib.request, urllib.error
try: print("let in", urllib.request.urlopen(sys.argv[1], timeout=30).status)
except urllib.error.HTTPError as e: print(e.code, e.read().decode())
`, "http://"+on+":"+namenodes+"/webhdfs/v1/?op=GETHOMEDIRECTORY&user.name="+user)
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	}
	loud := func() (log, health, doctor bool, err error) {
		said, err := t.do(ctx, on, "root", "cat", "/run/hops-namenode.log")
		if err != nil {
			return false, false, false, err
		}
		answer, err := t.do(ctx, on, user, "python3", "-c", `
import sys, urllib.request, urllib.error
try: print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())
except urllib.error.HTTPError as e: print(e.read().decode()) # it may not have heard who leads
`, "http://"+on+":"+namenodes+"/health")
		if err != nil {
			return false, false, false, err
		}
		found, _ := t.do(ctx, leader, "hops", "hops", "doctor", "--conf", conf) // its exit status is that of everything it looks at
		const words = "ARE BELIEVED WITHOUT PROOF"
		return strings.Contains(said, words), strings.Contains(answer, words), strings.Contains(found, words), nil
	}
	refused := func(said string) bool {
		return strings.HasPrefix(said, "403 ") && strings.Contains(said, "plain HTTP is for this machine and trusted networks")
	}
	if got := plain(); !refused(got) {
		return "", fmt.Errorf("before, a plain request from elsewhere: %s", got)
	}
	const line = `clients: {simple: [10.88.0.0/24]}`
	if _, err := t.do(ctx, on, "root", "sh", "-c", "echo '"+line+"' >> /etc/hops/hops.yaml"); err != nil {
		return "", err
	}
	if err := t.restarted(ctx, on, "namenode"); err != nil {
		return "", err
	}
	// Those who are asked may be slow once.
	if err := await(ctx, time.Minute, func() error {
		got := plain()
		log, health, doctor, err := loud()
		if err != nil || !log || !health || !doctor || refused(got) || !strings.Contains(got, "StandbyException") && !strings.HasPrefix(got, "let in") { // it does not lead
			return errors.Join(fmt.Errorf("with %s: in the log %v, on /health %v, by the doctor %v; a plain request: %s", line, log, health, doctor, got), err)
		}
		return nil
	}); err != nil {
		return "", err
	}
	if _, err := t.do(ctx, on, "root", "sed", "-i", "/^clients:/d", "/etc/hops/hops.yaml"); err != nil {
		return "", err
	}
	if err := t.restarted(ctx, on, "namenode"); err != nil {
		return "", err
	}
	if err := await(ctx, time.Minute, func() error {
		log, health, doctor, err := loud()
		if after := plain(); err != nil || log || health || doctor || !refused(after) {
			return errors.Join(fmt.Errorf("afterwards: in the log %v, on /health %v, by the doctor %v; a plain request: %s", log, health, doctor, after), err)
		}
		return nil
	}); err != nil {
		return "", err
	}
	return fmt.Sprintf("the namenode of %s says it in its log and on /health, the doctor too; plain requests of the network are refused, heard, refused", on), nil
}

// comeBack lets the machine that was removed join again, as the page says: its keys are removed, its data stays.
func comeBack(ctx context.Context, t *teller) (string, error) {
	if _, err := t.do(ctx, "m5", "root", "sh", "-c", "cd /etc/hops && rm hops.yaml servers.yaml identity.pem"); err != nil {
		return "", err
	}
	line, err := t.do(ctx, "m1", "root", "hops", "cluster", "token")
	if err != nil {
		return "", err
	}
	took, err := t.joins(ctx, "m5", strings.TrimSpace(line))
	if err != nil {
		return "", err
	}
	sum, err := t.acknowledged(ctx, "m5", "again-of-m5", 1<<20)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("in after %.1f s", took.Seconds()), t.same(ctx, "alone", "again-of-m5", sum)
}

// backup saves metadata and authority, loses all machines with a namenode or a resource manager, and makes them anew.
func backup(ctx context.Context, t *teller) (string, error) {
	first, err := t.leader(ctx, namenodes)
	if err != nil {
		return "", err
	}
	sum, err := t.acknowledged(ctx, "m4", "saved", 4<<20)
	if err != nil {
		return "", err
	}
	ran, err := t.do(ctx, "m4", user, append(append([]string{"hops", "job", "run", "-o", "json"}, t.jobConf...), "--memory", "128MiB", "--", "true")...)
	if err != nil {
		return "", err
	}
	id := regexp.MustCompile(`application_\d+_\d+`).FindString(ran)
	const file, key = "/root/lab.backup", "/root/lab.key"
	if err := t.m(first).Write(key, "correct horse battery staple\n", 0o600); err != nil {
		return "", err
	}
	if _, err := t.do(ctx, first, "root", "hops", "cluster", "backup", file, "--key", key); err != nil {
		return "", err
	}
	saved, err := t.do(ctx, first, "root", "base64", "-w0", file)
	if err != nil {
		return "", err
	}
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(saved))
	if err != nil {
		return "", err
	}
	if _, err := t.acknowledged(ctx, "m4", "since", 1<<20); err != nil {
		return "", err
	}
	for _, s := range servers {
		if err := t.erase(ctx, s); err != nil {
			return "", err
		}
	}
	if _, err := t.do(ctx, first, "root", "rm", file); err != nil { // it was kept elsewhere
		return "", err
	}
	began := time.Now()
	if err := t.m(first).Write(file, string(text), 0o600); err != nil {
		return "", err
	}
	if _, err := t.do(ctx, first, "root", "hops", "cluster", "restore", file, "--key", key); err != nil {
		return "", err
	}
	if err := t.serve(ctx, first, false, "namenode"); err != nil {
		return "", err
	}
	if err := await(ctx, time.Minute, func() error { return t.same(ctx, "alone", "saved", sum) }); err != nil {
		return "", err
	}
	took := time.Since(began)
	if out, err := t.fs(ctx, "alone", user, "-ls", "since"); err == nil {
		return "", fmt.Errorf("what came after the backup is there: %s", out)
	}
	// Blocks that only the lost machines had do not come: the namespace waits for them until somebody says that they are lost.
	if err := await(ctx, time.Minute, func() error { return t.live(ctx, first, "m4", "m5") }); err != nil {
		return "", err
	}
	// The others, which it asks too, are not there.
	if out, err := t.do(ctx, first, "hops", "hops", "dfsadmin", "-conf", conf, "-safemode", "leave"); !regexp.MustCompile(`Safe mode is OFF in \S*` + regexp.QuoteMeta(t.m(first).Address.String())).MatchString(out) {
		return "", errors.Join(fmt.Errorf("-safemode leave: %s", out), err)
	}
	// The rest of the machine's servers, and the other machines anew.
	if err := t.serve(ctx, first, false, "resourcemanager", "datanode", "nodemanager"); err != nil {
		return "", err
	}
	for _, s := range servers {
		if s == first {
			continue
		}
		out, err := t.do(ctx, first, "root", "hops", "cluster", "replace", s)
		if err != nil {
			return "", err
		}
		line := joinLine.FindString(out)
		if line == "" {
			return "", fmt.Errorf("no line to paste in what it said: %s", out)
		}
		if _, err := t.joins(ctx, s, line); err != nil {
			return "", err
		}
	}
	if err := errors.Join(t.whole(ctx, "namenode"), t.whole(ctx, "resourcemanager")); err != nil {
		return "", err
	}
	if _, err := nodes(ctx, t); err != nil {
		return "", err
	}
	all := time.Since(began)
	if err := t.same(ctx, "alone", "saved", sum); err != nil {
		return "", err
	}
	if out, err := t.do(ctx, "alone", user, append([]string{"hops", "job", "status", id}, t.jobConf...)...); err != nil || !strings.Contains(out, "SUCCEEDED") {
		return "", errors.Join(fmt.Errorf("of a job from before the backup it is said: %s", out), err)
	}
	again, err := job(ctx, t)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the three machines of servers lost everything; %s serves, and %s reads the file, after %.1f s; all three are in after %.1f s; a job: %s",
		first, user, took.Seconds(), all.Seconds(), again), nil
}
