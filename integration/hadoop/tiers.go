package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
)

// tiersRows start a cluster of hops with volumes of four types and Unix-domain sockets.
func (s *suite) tiersRows(ctx context.Context) error {
	dir := filepath.Join(s.dir, "tiers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	socket := filepath.Join(dir, "dn_PORT")
	say("starting hops: 1 namenode, %d datanodes with volumes of four types", datanodes)
	c, err := startOursOn(ctx, s.binary, dir, 1, special{types: []string{"DISK", "SSD", "ARCHIVE", "RAM_DISK"}, socket: socket})
	if err != nil {
		return err
	}
	defer c.stop()
	if s.wants("tiers") {
		if err := s.tiersRow(ctx, c); err != nil {
			return err
		}
	}
	if s.wants("shortcircuit") {
		return s.shortCircuitRow(ctx, c, socket)
	}
	return nil
}

// tiersRow has the stock client place files on types of volumes and move them, and read files of our client with an erasure coding policy that are being written.
func (s *suite) tiersRow(ctx context.Context, c *cluster) error {
	fsShell, err := s.driver(ctx, c)
	if err != nil {
		return err
	}
	say("tiers")
	row := &row{name: "tiers", title: "storage policies and open ends of coded files, the stock client on hops"}
	s.rows = append(s.rows, row)
	add := func(name string, err error) {
		switch {
		case !strings.Contains(name, s.cases):
		case err != nil:
			row.add(name, failed, "  "+err.Error()+"\n")
		default:
			row.add(name, passed, "")
		}
	}
	run := func(args ...string) (string, error) {
		o, err := fsShell.run(ctx, c, superuser(), "", args)
		if err == nil && o.status != 0 {
			err = fmt.Errorf("%s: exit %d: %s", strings.Join(args, " "), o.status, strings.TrimSpace(o.stderr+o.stdout))
		}
		return o.stdout, err
	}
	local := filepath.Join(s.dir, "tiers.bin")
	data := make([]byte, 5<<20+777)
	for i, r := 0, rand.New(rand.NewPCG(3, 4)); i < len(data); i++ {
		data[i] = byte(r.Uint32())
	}
	if err := os.WriteFile(local, data[:300_000], 0o644); err != nil {
		return err
	}
	for _, p := range []struct{ policy, want string }{
		{"HOT", "DISK DISK"}, {"WARM", "ARCHIVE DISK"}, {"COLD", "ARCHIVE ARCHIVE"}, {"ALL_SSD", "SSD SSD"}, {"ONE_SSD", "DISK SSD"}, {"LAZY_PERSIST", "DISK RAM_DISK"},
	} {
		dir := "/tiers/" + p.policy
		_, err := run("-mkdir", "-p", dir)
		if err == nil {
			_, err = run("!storagepolicies", "-setStoragePolicy", "-path", dir, "-policy", p.policy)
		}
		if err == nil {
			_, err = run("-D", "dfs.replication=2", "-put", local, dir+"/f")
		}
		if err == nil {
			err = s.onTypes(ctx, run, dir+"/f", p.want)
		}
		add(p.policy+": a file goes to "+p.want, err)
	}
	_, err = run("-D", "dfs.replication=2", "-put", "-l", local, "/tiers/lazy") // which has one replica, whatever was said
	if err == nil {
		err = s.onTypes(ctx, run, "/tiers/lazy", "RAM_DISK")
	}
	if err == nil {
		var out string
		if out, err = run("!storagepolicies", "-getStoragePolicy", "-path", "/tiers/lazy"); err == nil && !strings.Contains(out, "LAZY_PERSIST") {
			err = fmt.Errorf("its policy is %q", out)
		}
	}
	add("-put -l writes to memory", err)
	for _, p := range []struct{ policy, want string }{{"ALL_SSD", "SSD SSD"}, {"COLD", "ARCHIVE ARCHIVE"}, {"HOT", "DISK DISK"}} {
		_, err := run("!storagepolicies", "-setStoragePolicy", "-path", "/tiers/WARM", "-policy", p.policy)
		for range 100 {
			if err == nil {
				_, err = run("!storagepolicies", "-satisfyStoragePolicy", "-path", "/tiers/WARM")
			}
			if err == nil || !strings.Contains(err.Error(), "was already called for satisfying storage policy") { // the last time has not ended
				break
			}
			err = nil
			time.Sleep(200 * time.Millisecond)
		}
		if err == nil {
			err = s.onTypes(ctx, run, "/tiers/WARM/f", p.want)
		}
		add("-satisfyStoragePolicy moves a file to "+p.want, err)
	}
	for _, p := range []struct{ policy, want string }{{"ALL_SSD", "SSD SSD"}, {"COLD", "ARCHIVE ARCHIVE"}} {
		_, err := run("!storagepolicies", "-setStoragePolicy", "-path", "/tiers/HOT", "-policy", p.policy)
		if err == nil {
			_, err = run("!mover", "-p", "/tiers/HOT")
		}
		if err == nil {
			err = s.onTypes(ctx, run, "/tiers/HOT/f", p.want)
		}
		add("hdfs mover moves a file to "+p.want, err)
	}
	_, err = run("-mkdir", "/tiers/quota")
	if err == nil {
		_, err = run("!storagepolicies", "-setStoragePolicy", "-path", "/tiers/quota", "-policy", "ALL_SSD")
	}
	if err == nil {
		_, err = run("!dfsadmin", "-setSpaceQuota", "700000", "-storageType", "SSD", "/tiers/quota")
	}
	if err == nil {
		_, err = run("-D", "dfs.replication=2", "-D", "dfs.blocksize=300032", "-put", local, "/tiers/quota/f")
	}
	add("a file fits a quota of SSD", err)
	o, err := fsShell.run(ctx, c, superuser(), "", []string{"-D", "dfs.replication=2", "-D", "dfs.blocksize=300032", "-put", local, "/tiers/quota/g"})
	if err == nil && (o.status == 0 || !strings.Contains(o.stderr, "Quota by storage type : SSD on path : /tiers/quota is exceeded")) {
		err = fmt.Errorf("exit %d: %s", o.status, o.stderr)
	}
	add("another one does not", err)
	out, err := run("-count", "-q", "-t", "SSD", "/tiers/quota")
	if fields := strings.Fields(out); err == nil && (len(fields) < 2 || fields[0] != "700000" || fields[1] != "100000") {
		err = fmt.Errorf("-count says %q", out)
	}
	add("-count says what is left of it", err)
	return s.openEnds(ctx, c, data, add)
}

var volumeType = regexp.MustCompile(`DatanodeInfoWithStorage\[[^\]]*,([A-Z_]+)\]`)

// onTypes waits until the replicas of a file are on volumes of those types.
func (s *suite) onTypes(ctx context.Context, run func(...string) (string, error), path, want string) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		out, err := run("!fsck", path, "-files", "-blocks", "-locations")
		if err != nil {
			return err
		}
		var types []string
		for _, m := range volumeType.FindAllStringSubmatch(out, -1) {
			types = append(types, m[1])
		}
		slices.Sort(types)
		got := strings.Join(types, " ")
		if got == want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is on %q", path, got)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// openEnds writes a file with an erasure coding policy, flushes it and appends to it by our client, and has the stock client read it meanwhile.
func (s *suite) openEnds(ctx context.Context, c *cluster, data []byte, add func(string, error)) error {
	classPath, err := s.hadoop()
	if err != nil {
		return err
	}
	fs, err := c.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	const dir, path = "/tiers/coded", "/tiers/coded/f"
	err = fs.Mkdirs(ctx, dir, 0o755, true)
	if err == nil {
		err = fs.SwitchErasurePolicy(ctx, codedPolicy, true)
	}
	if err == nil {
		err = fs.SetErasurePolicy(ctx, dir, codedPolicy)
	}
	if err != nil {
		return err
	}
	// read is the beginning of what was written that the stock client has: all of it, if the file is closed.
	read := func(name string, written int, closed bool) {
		out, err := tool(s.dir, javaEnv(), stockJava(s.dir, c.conf, classPath, "StorageDriver", c.uri, c.http[0], path)...)
		cases, _ := driverCases(out)
		var n int
		var sum string
		if _, e := fmt.Sscan(strings.Join(cases["read"], " "), &n, &sum); err == nil {
			err = e
		}
		switch {
		case err != nil:
			err = fmt.Errorf("%w: %s", err, out)
		case n > written || sum != fmt.Sprintf("%x", crc32.ChecksumIEEE(data[:n])):
			err = fmt.Errorf("%d bytes were read, of %d, and others", n, written)
		case closed && n != written:
			err = fmt.Errorf("%d bytes were read of %d", n, written)
		case closed && strings.Join(cases["checksum"], "") != fmt.Sprintf("composite: COMPOSITE-CRC32C %08x", crc32.Checksum(data[:n], crc32.MakeTable(crc32.Castagnoli))):
			err = fmt.Errorf("%s", cases["checksum"])
		}
		add(name, err)
	}
	w, err := fs.Create(ctx, path, dfs.CreateOptions{BlockSize: 2 << 20})
	if err != nil {
		return err
	}
	at := 0
	write := func(n int) error {
		_, err := w.Write(data[at : at+n])
		at += n
		return err
	}
	if err := write(3<<20 + 100); err != nil {
		return err
	}
	if err := w.Hflush(ctx); err != nil {
		return err
	}
	read("a coded file with an open end, after hflush", at, false)
	if err := write(200_000); err != nil {
		return err
	}
	if err := w.Hsync(ctx); err != nil {
		return err
	}
	read("after hsync", at, false)
	if err := w.Close(); err != nil {
		return err
	}
	read("when it is closed", at, true)
	if w, err = fs.Append(ctx, path); err != nil {
		return err
	}
	if err := write(300_000); err != nil {
		return err
	}
	if err := w.Hflush(ctx); err != nil {
		return err
	}
	read("while it is appended to", at, false)
	if err := w.Close(); err != nil {
		return err
	}
	read("when what was appended is closed", at, true)
	return nil
}
