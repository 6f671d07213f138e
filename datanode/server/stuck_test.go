package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/internal/dtp"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// fetch reads a block over the network.
func (p *pair) fetch(b metadata.Block) error {
	in, err := p.transfer.Fetch(p.t.Context(), "BP-lab", b, hadoopNode(p.id), 0, b.Length)
	if err != nil {
		return err
	}
	defer in.Close()
	got, err := io.ReadAll(in)
	if err == nil && string(got) != strings.Repeat("x", int(b.Length)) {
		err = errors.New("it is read wrong")
	}
	return err
}

// checksum asks for the checksum of a block over the network, which opens its replica.
func (p *pair) checksum(b metadata.Block) error {
	_, err := p.transfer.Wanted(p.t.Context(), "BP-lab", b, hadoopNode(p.id))
	return err
}

// Who reads from a disk that hangs hears it long before the connection would have been silent for too long, whatever call hangs; who comes later hears at once which volume it is. Other disks are read as ever, and so is this one when it answers.
func TestReadersHearThatADiskHangs(t *testing.T) {
	for _, call := range []string{"read", "open"} {
		t.Run(call, func(t *testing.T) {
			p := newPair(t, 20*time.Second, nil)
			small, large, other := p.keep(1, datanode.Disk, 100), p.keep(2, datanode.Disk, 3_000_000), p.keep(3, datanode.SSD, 3_000_000)
			p.hang(call)
			over := make(chan error, 2)
			go func() { over <- p.fetch(large) }()
			go func() {
				if call == "open" { // packed: its record is read of what is open
					over <- p.fetch(large)
				} else {
					over <- p.fetch(small)
				}
			}()
			within(t, "a call hangs", func() bool { return p.stuck.Load() > 0 })
			for range 2 {
				within(t, "who waits is sent away", func() bool { return len(over) > 0 })
				if err := <-over; err == nil {
					t.Error("a disk that hangs was read")
				}
			}
			waiting := p.stuck.Load()
			for what, read := range map[string]func() error{
				"data": func() error { return p.fetch(large) }, "packed data": func() error { return p.fetch(small) }, "a checksum": func() error { return p.checksum(large) },
			} {
				err := read()
				if refused, ok := errors.AsType[*dtp.ResponseError](err); !ok || !refused.Silent || !strings.Contains(refused.Message, "is on volume /a: the disk does not answer") {
					t.Errorf("%s: %v", what, err)
				}
			}
			if n := p.stuck.Load(); n != waiting {
				t.Errorf("%d more wait for the disk", n-waiting)
			}
			check(t, p.fetch(other))
			p.free()
			within(t, "it is read again", func() bool { return p.fetch(large) == nil && p.fetch(small) == nil && p.checksum(large) == nil })
		})
	}
}

// That a disk takes long to write says nothing about reads.
func TestADiskThatHangsInWritesIsRead(t *testing.T) {
	p := newPair(t, 20*time.Second, nil)
	b := p.keep(2, datanode.Disk, 3_000_000)
	p.hang("sync")
	p.lost.Go(func() {
		w, err := p.store.Create(metadata.Block{ID: 7, Generation: 1001}, datanode.CreateOptions{Type: datanode.Disk})
		if err == nil {
			_ = w.Write(0, make([]byte, 100_000), nil)
			_, _ = w.Finalize()
		}
	})
	within(t, "the volume is slow", func() bool { return p.store.Volumes()[0].Slow })
	check(t, p.fetch(b))
}

// Who has a replica made on a volume that is given up hears that, although the call hangs still.
func TestCopiesEndWithTheirVolume(t *testing.T) {
	p := newPair(t, time.Second, nil)
	p.hang("write")
	over := make(chan error, 1)
	p.lost.Go(func() {
		out, err := p.transfer.Place(context.Background(), "BP-lab", metadata.Block{ID: 7, Generation: 1001, Length: 32 << 20}, hadoopNode(p.id), hadooppb.StorageTypeProto_DISK, datanode.DefaultChecksum, false)
		if err == nil {
			if _, err = out.Write(make([]byte, 32<<20)); err == nil {
				err = out.Finish()
			}
			_ = out.Close()
		}
		over <- err
	})
	within(t, "the source is free", func() bool { return len(over) > 0 })
	if err := <-over; err == nil {
		t.Error("a replica was made on a disk that hangs")
	}
	if p.stuck.Load() == 0 {
		t.Error("nothing hangs")
	}
}
