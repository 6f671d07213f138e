package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohops/hops/client/dfs"
	doors "github.com/gohops/hops/namenode"
)

// smallRow is about files whose bytes our namenodes keep: what hops fs writes there Hadoop's client reads, appends to, cuts, concatenates and waits for as for
// any file, and the other way round.
func (s *suite) smallRow(ctx context.Context, ours *cluster, fsShell runner) error {
	say("small files")
	row := &row{name: "smallfiles", title: "small files that namenodes keep, by Hadoop's client and ours"}
	s.rows = append(s.rows, row)
	fs, err := ours.client("")
	if err != nil {
		return err
	}
	defer fs.Close()
	const dir = "/small-files"
	if err := fs.Mkdirs(ctx, dir, 0o755, true); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // -setrep -w may wait for ever
	defer cancel()
	clients := []struct {
		name string
		run  runner
	}{{"FsShell", fsShell}, {"hops fs", hopsFS(s.binary)}}
	shell := func(run runner, args ...string) (string, error) {
		o, err := run(ctx, ours, superuser(), "", args)
		if err == nil && o.status != 0 {
			err = fmt.Errorf("%s: exit %d: %s%s", strings.Join(args, " "), o.status, strings.TrimSpace(o.stdout), strings.TrimSpace(o.stderr))
		}
		return o.stdout, err
	}
	local := filepath.Join(s.dir, "small.bin")
	content := func(n, seed int) []byte {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i*7 + i>>8 + seed)
		}
		return data
	}
	put := func(run runner, path string, data []byte) error {
		err := os.WriteFile(local, data, 0o644)
		if err == nil {
			_, err = shell(run, "-put", "-f", local, path)
		}
		return err
	}
	add := func(name string, err error) {
		if err != nil {
			row.add(name, failed, "  "+shorten(err.Error())+"\n")
			return
		}
		row.add(name, passed, "")
	}
	reads := func(name, path string, want []byte, err error) {
		for _, reader := range clients {
			e := err
			var got []byte
			if e == nil {
				got, e = s.getBy(reader.run, ours, path)
			}
			if e == nil && !bytes.Equal(got, want) {
				e = fmt.Errorf("%d bytes, want %d, the first difference at %d", len(got), len(want), firstDifference(got, want))
			}
			add(fmt.Sprintf("%s, read by %s", name, reader.name), e)
		}
	}
	for _, size := range []int{1, 1024, 5000, 64 << 10} {
		data, small, blocks := content(size, 0), fmt.Sprintf("%s/%d", dir, size), fmt.Sprintf("%s/%d-blocks", dir, size)
		err := put(clients[1].run, small, data)
		if err == nil {
			err = isKept(ctx, fs, small)
		}
		reads(fmt.Sprintf("%d bytes by hops fs", size), small, data, err)
		other := put(clients[0].run, blocks, data)
		reads(fmt.Sprintf("%d bytes by FsShell", size), blocks, data, other)
		for _, c := range clients {
			e := err
			var sums [2]string
			for i, path := range []string{small, blocks} {
				if e == nil {
					sums[i], e = shell(c.run, "-checksum", path)
					_, sums[i], _ = strings.Cut(sums[i], "\t")
				}
			}
			if e == nil && (sums[0] != sums[1] || sums[0] == "") {
				e = fmt.Errorf("%s, and in blocks %s", sums[0], sums[1])
			}
			add(fmt.Sprintf("the checksum of %d bytes is that of blocks, says %s", size, c.name), e)
		}
	}
	// What Hadoop's client wrote to datanodes, kept by the namenodes from then on: it reads, appends to and cuts it as before.
	written, line := content(4000, 3), content(50, 4)
	err = put(clients[0].run, dir+"/kept", written)
	if err == nil {
		_, err = tool(".", nil, s.binary, "smallfiles", "--conf", ours.conf, dir+"/kept", "keep")
	}
	if err == nil {
		err = isKept(ctx, fs, dir+"/kept")
	}
	reads("kept, by FsShell", dir+"/kept", written, err)
	if err == nil {
		if err = os.WriteFile(local, line, 0o644); err == nil {
			_, err = shell(clients[0].run, "-appendToFile", local, dir+"/kept")
		}
	}
	reads("kept, and appended to by FsShell", dir+"/kept", append(written, line...), err)
	// For each client, what changes a small file.
	for i, c := range clients {
		at := func(name string) string { return fmt.Sprintf("%s/%d%s", dir, i, name) }
		small := func(name string, data []byte) error {
			err := put(clients[1].run, at(name), data)
			if err == nil {
				err = isKept(ctx, fs, at(name))
			}
			return err
		}
		first, more := content(3000, 1), content(700, 2)
		err := small("append", first)
		for range 2 {
			if err == nil {
				if err = os.WriteFile(local, more, 0o644); err == nil {
					_, err = shell(c.run, "-appendToFile", local, at("append"))
				}
			}
		}
		reads("appended to by "+c.name, at("append"), bytes.Join([][]byte{first, more, more}, nil), err)
		if err = small("truncate", first); err == nil {
			_, err = shell(c.run, "-truncate", "-w", "1234", at("truncate"))
		}
		reads("cut by "+c.name, at("truncate"), first[:1234], err)
		for _, n := range []string{"2", "3", "1"} {
			if err = small("setrep", first); err == nil {
				_, err = shell(c.run, "-setrep", "-w", n, at("setrep"))
			}
			add(fmt.Sprintf("%s waits for %s replicas", c.name, n), err)
		}
		// Small files behind blocks, and all kinds behind a small file.
		err = put(clients[0].run, at("blocks"), first)
		for _, name := range []string{"one", "two"} {
			if err == nil {
				err = small(name, more)
			}
		}
		if err == nil {
			_, err = shell(c.run, "-concat", at("blocks"), at("one"), at("two"))
		}
		joined := bytes.Join([][]byte{first, more, more}, nil)
		reads("concatenated behind blocks by "+c.name, at("blocks"), joined, err)
		if err == nil {
			if err = small("three", more); err == nil {
				_, err = shell(c.run, "-concat", at("three"), at("blocks"), at("append"))
			}
		}
		whole := bytes.Join([][]byte{more, joined, joined}, nil)
		reads("concatenated behind a small file by "+c.name, at("three"), whole, err)
		var sum, other string
		if err == nil {
			sum, err = shell(clients[0].run, "-checksum", at("three"))
		}
		if err == nil {
			other, err = shell(clients[1].run, "-checksum", at("three"))
		}
		if err == nil && sum != other {
			err = fmt.Errorf("FsShell says %s, hops fs %s", sum, other)
		}
		add("checksum of what "+c.name+" has concatenated", err)
		if err == nil {
			_, err = shell(c.run, "-truncate", "-w", "4000", at("three")) // inside of a body that concat brought
		}
		reads("cut after concat by "+c.name, at("three"), whole[:4000], err)
	}
	return s.adoptedCases(ctx, row)
}

// adoptedCases have the stock client write short files to a cluster whose namenodes keep them a second later, with files open meanwhile (java/SmallFilesDriver.java).
func (s *suite) adoptedCases(ctx context.Context, row *row) error {
	classPath, err := s.hadoop()
	if err != nil {
		return err
	}
	dir := filepath.Join(s.dir, "adopted")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	say("starting hops: 1 namenode, %d datanodes, short files are kept after a second", datanodes)
	c, err := startOursOn(ctx, s.binary, dir, 1, special{smallFileDelay: time.Second})
	if err != nil {
		return err
	}
	defer c.stop()
	out, err := tool(s.dir, javaEnv(), stockJava(s.dir, c.conf, classPath, "SmallFilesDriver", c.uri, strings.TrimSuffix(string(doors.DoorID("", "")), "-"))...)
	cases, order := driverCases(out)
	if err != nil {
		cases["the driver of small files ends well"] = strings.Split(err.Error(), "\n")
	}
	for _, name := range append(order, "the driver of small files ends well") {
		if wrong := cases[name]; len(wrong) > 0 {
			row.add(name, failed, strings.Join(wrong, "\n"))
		} else {
			row.add(name, passed, "")
		}
	}
	return nil
}

// isKept says whether the namenodes have the bytes of a file.
func isKept(ctx context.Context, fs *dfs.Client, path string) error {
	blocks, err := fs.BlockLocations(ctx, path, 0, 1)
	switch {
	case err != nil:
		return err
	case len(blocks) != 1 || len(blocks[0].Datanodes) == 0 || !doors.IsDoor(doors.NodeID(blocks[0].Datanodes[0].UUID)):
		return fmt.Errorf("%s is not kept by the namenodes: %+v", path, blocks)
	}
	return nil
}
