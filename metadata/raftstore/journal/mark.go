package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gohops/hops/metadata"
)

// mark is the file "acked": the watermark outside of the log, for damage that takes the log's end with it. It is written
// after the log's fsync and not synced itself, so that what it says is true whenever it gets to the disk; envelopes say
// the same, one write late. Two slots of one sector each, written in turn, little endian:
//
//	 0        8      16          24       32    36
//	+--------+------+-----------+--------+-----+
//	| magic  | salt | sequence  | acked  | crc |
//	+--------+------+-----------+--------+-----+
type mark struct {
	f        *os.File
	salt     salt
	sequence uint64
	acked    uint64
	buf      [markBytes]byte
}

const (
	markMagic = "hopsACK1"
	markBytes = 36
	markSlot  = 512
)

func openMark(dir string) (*mark, error) {
	path := filepath.Join(dir, "acked")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return createMark(dir, path)
	}
	if err != nil {
		return nil, err
	}
	m := &mark{f: f}
	found := false
	for slot := range int64(2) {
		var b [markBytes]byte
		if n, _ := f.ReadAt(b[:], slot*markSlot); n < markBytes {
			continue
		}
		if string(b[:8]) != markMagic || crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
			continue
		}
		if seq := binary.LittleEndian.Uint64(b[16:]); !found || seq > m.sequence {
			found = true
			m.sequence, m.acked = seq, binary.LittleEndian.Uint64(b[24:])
			copy(m.salt[:], b[8:16])
		}
	}
	if !found {
		f.Close()
		return nil, metadata.Errorf(metadata.ErrCorrupt, "%s is damaged", path)
	}
	return m, nil
}

// createMark makes the file under another name first: a crash leaves either none or a complete one.
func createMark(dir, path string) (*mark, error) {
	temporary := path + ".tmp"
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	m := &mark{f: f}
	rand.Read(m.salt[:]) // never fails (crypto/rand)
	for range 2 {
		if err = m.put(0); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	return m, nil
}

func (m *mark) put(acked uint64) error {
	m.sequence++
	b := m.buf[:0]
	b = append(b, markMagic...)
	b = append(b, m.salt[:]...)
	b = binary.LittleEndian.AppendUint64(b, m.sequence)
	b = binary.LittleEndian.AppendUint64(b, acked)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if _, err := m.f.WriteAt(b, int64(m.sequence%2)*markSlot); err != nil {
		return err
	}
	m.acked = acked
	return nil
}

// raise notes that entries up to acked are durable.
func (m *mark) raise(acked uint64) error { return m.put(acked) }

// lower notes, durably, that entries above acked are about to be deleted.
func (m *mark) lower(acked uint64) error {
	if m.acked <= acked {
		return nil
	}
	// Both slots: the older one may not speak again if the newer is torn.
	for range 2 {
		if err := m.put(acked); err != nil {
			return err
		}
		if err := m.f.Sync(); err != nil {
			return err
		}
	}
	return nil
}

func (m *mark) close() error { return errors.Join(m.f.Sync(), m.f.Close()) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
