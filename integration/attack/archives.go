package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/client/dfs"
	rm "github.com/gohops/hops/resourcemanager"
)

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// largeManifest is a code artifact of a few megabytes whose manifest.json unpacks to n bytes, a multiple of a MiB.
func largeManifest(w io.Writer, n int64) error {
	var packed bytes.Buffer
	z, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		return err
	}
	sum := crc32.NewIEEE()
	blanks := bytes.Repeat([]byte{' '}, mib)
	// Every MiB but the first packs to the same bytes, because what it refers to is the same; the first only begins them.
	var first, again []byte
	for i := range 2 {
		if _, err := z.Write(blanks); err != nil {
			return err
		}
		if err := z.Flush(); err != nil {
			return err
		}
		if i == 0 {
			first = bytes.Clone(packed.Bytes())
		} else {
			again = bytes.Clone(packed.Bytes()[len(first):])
		}
	}
	packed.Reset()
	packed.Write(first)
	for range n/mib - 1 {
		packed.Write(again)
	}
	packed.Write([]byte{1, 0, 0, 0xff, 0xff}) // an empty last block, stored
	for range n / mib {
		sum.Write(blanks)
	}
	archive := zip.NewWriter(w)
	f, err := archive.CreateRaw(&zip.FileHeader{
		Name: "manifest.json", Method: zip.Deflate, CRC32: sum.Sum32(), CompressedSize64: uint64(packed.Len()), UncompressedSize64: uint64(n),
	})
	if err != nil {
		return err
	}
	if _, err := f.Write(packed.Bytes()); err != nil {
		return err
	}
	return archive.Close()
}

// manyEntries is a zip file whose directory names n empty files; their one header is shared.
func manyEntries(w io.Writer, n int) error {
	le := binary.LittleEndian
	var local []byte
	local = le.AppendUint32(local, 0x04034b50)
	local = append(local, make([]byte, 22)...) // version to CRC and sizes: all 0, stored
	local = le.AppendUint16(local, 7)
	local = le.AppendUint16(local, 0)
	local = append(local, "0000000"...)
	if _, err := w.Write(local); err != nil {
		return err
	}
	size := uint64(0)
	var batch []byte
	for i := range n {
		at := len(batch)
		batch = le.AppendUint32(batch, 0x02014b50)
		batch = append(batch, make([]byte, 24)...)
		batch = le.AppendUint16(batch, 7)
		batch = append(batch, make([]byte, 16)...) // extra, comment, disk, attributes, offset 0
		batch = fmt.Appendf(batch, "%07d", i)
		size += uint64(len(batch) - at)
		if len(batch) > 1<<20 || i == n-1 {
			if _, err := w.Write(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	offset := uint64(len(local))
	var end []byte // zip64 end of the directory, its locator, the end of the directory
	end = le.AppendUint32(end, 0x06064b50)
	end = le.AppendUint64(end, 44)
	end = le.AppendUint16(end, 45)
	end = le.AppendUint16(end, 45)
	end = le.AppendUint64(end, 0)
	end = le.AppendUint64(end, uint64(n))
	end = le.AppendUint64(end, uint64(n))
	end = le.AppendUint64(end, size)
	end = le.AppendUint64(end, offset)
	end = le.AppendUint32(end, 0x07064b50)
	end = le.AppendUint32(end, 0)
	end = le.AppendUint64(end, offset+size)
	end = le.AppendUint32(end, 1)
	end = le.AppendUint32(end, 0x06054b50)
	end = le.AppendUint32(end, 0)
	end = le.AppendUint32(end, 0xffffffff)
	end = le.AppendUint32(end, 0xffffffff)
	end = le.AppendUint32(end, 0xffffffff)
	end = le.AppendUint16(end, 0)
	_, err := w.Write(end)
	return err
}

// deepEntries is a zip file of n directories, each below depth others.
func deepEntries(w io.Writer, n, depth int) error {
	archive := zip.NewWriter(w)
	for i := range n {
		if _, err := archive.CreateHeader(&zip.FileHeader{Name: fmt.Sprintf("%04d/", i) + strings.Repeat("a/", depth), Method: zip.Store}); err != nil {
			return err
		}
	}
	return archive.Close()
}

// linkChain is an archive with a link that stays inside, and one that leads out through it.
func linkChain(w io.Writer) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "a/b/c/", Mode: 0o755},
		{Typeflag: tar.TypeSymlink, Name: "a/b/c/l", Linkname: "../../.."},
		{Typeflag: tar.TypeSymlink, Name: "m", Linkname: "a/b/c/l/../../.."},
	} {
		if err := t.WriteHeader(h); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// unpacks runs a job whose input is an archive, and watches its node manager.
func (s *scene) unpacks(ctx context.Context, r *result, kind string, argv []string, archive func(io.Writer) error) (client.JobStatus, string, error) {
	const path = "/scene/archive"
	w, err := s.fs.Create(ctx, path, dfs.CreateOptions{})
	if err != nil {
		return client.JobStatus{}, "", err
	}
	if err := errors.Join(archive(w), w.Close()); err != nil {
		return client.JobStatus{}, "", err
	}
	info, err := s.fs.Stat(ctx, path)
	if err != nil {
		return client.JobStatus{}, "", err
	}
	r.Sent = info.Length
	node, err := s.k.Server("nm1")
	if err != nil {
		return client.JobStatus{}, "", err
	}
	var j client.JobStatus
	var text string
	err = s.siege(ctx, r, siege{
		target: "nm1", probes: []probe{s.health("node manager", node.NodeManager.HTTP), s.managerList()},
		length: 2 * time.Minute, settle: s.settling(),
		work: func(ctx context.Context) (err error) {
			j, text, err = s.runJob(ctx, "mallory", time.Minute, client.Job{
				Name: "unpacker", Argv: argv, Artifacts: []rm.Artifact{{Name: "in", URI: path, Kind: kind}},
			})
			return err
		},
	})
	r.found("the job: %s %s %.150s", j.State, j.FinalStatus, j.Diagnostics)
	return j, text, err
}

// archiveOf: one that is small and unpacks to much memory.
func archiveOf(kind string, write func(io.Writer) error) func(context.Context, *scene, *result) error {
	return func(ctx context.Context, s *scene, r *result) error {
		_, _, err := s.unpacks(ctx, r, kind, []string{"true"}, write)
		return err
	}
}

// mostInodes is how many a node unpacks of one archive.
const mostInodes = 500_000

// archiveDirectories: one name is a hundred directories, and could be two thousand.
func archiveDirectories(ctx context.Context, s *scene, r *result) error {
	before := s.freeInodes()
	least := before
	stop := sample(200*time.Millisecond, func() { least = min(least, s.freeInodes()) })
	_, _, err := s.unpacks(ctx, r, "archive", []string{"true"}, func(w io.Writer) error { return deepEntries(w, 6000, 100) })
	stop()
	made := int64(before) - int64(least)
	r.found("about %d inodes", made)
	if made > mostInodes+50_000 { // others of this machine make files too
		r.missed("about %d inodes of 6,000 entries", made)
	}
	return err
}

func (s *scene) freeInodes() uint64 {
	var st unix.Statfs_t
	if unix.Statfs(s.dir, &st) != nil {
		return 0
	}
	return st.Ffree
}

// archiveLinks: where the links lead is asked in the container.
func archiveLinks(ctx context.Context, s *scene, r *result) error {
	const script = `[ -e in/a ] && { root=$(readlink -f in); echo "root=$root"; readlink -f in/m; case "$(readlink -f in/m)" in "$root"|"$root"/*) echo INSIDE;; *) echo OUTSIDE;; esac; }`
	j, text, err := s.unpacks(ctx, r, "archive", []string{"sh", "-c", script}, linkChain)
	if err != nil {
		return err
	}
	switch {
	case strings.Contains(text, "OUTSIDE"):
		r.missed("a link leads out of the container's directory")
	case !strings.Contains(text, "INSIDE") && j.Succeeded():
		return fmt.Errorf("the job has not said where the link leads: %q", text)
	}
	return nil
}
