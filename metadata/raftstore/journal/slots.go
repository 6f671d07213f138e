package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// slots is a small file of two records that are replaced in place, little endian, each in a block of its own:
//
//	 0        8        10       10+n  14+n
//	+--------+--------+---------+-----+
//	| magic  | length | payload | crc |
//	+--------+--------+---------+-----+
//
// A record fits into a sector of 512 bytes, which disks write whole or not at all.
type slots struct {
	f     *os.File
	magic string // 8 bytes
}

const (
	slotBlock  = 4096
	slotMax    = 512
	slotFrame  = 14
	slotCount  = 2
	maxPayload = slotMax - slotFrame
)

// openSlots opens the file and returns the payloads of the records, nil for a damaged one. fs.ErrNotExist: no file.
func openSlots(path, magic string) (s *slots, records [slotCount][]byte, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, records, err
	}
	for i := range records {
		b := make([]byte, slotMax)
		if n, _ := f.ReadAt(b, int64(i)*slotBlock); n < slotMax {
			continue
		}
		size := int(binary.LittleEndian.Uint16(b[8:]))
		if string(b[:8]) != magic || size > maxPayload {
			continue
		}
		end := 10 + size
		if crc32.Checksum(b[:end], castagnoli) == binary.LittleEndian.Uint32(b[end:]) {
			records[i] = b[10:end]
		}
	}
	return &slots{f: f, magic: magic}, records, nil
}

// createSlots makes the file with the payload in both records. A crash leaves either no file or a complete one.
func createSlots(path, magic string, payload []byte) (*slots, error) {
	temporary := path + ".tmp"
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	s := &slots{f: f, magic: magic}
	err = errors.Join(f.Truncate(slotCount*slotBlock), s.put(0, payload), s.put(1, payload), f.Sync())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	return s, nil
}

// put replaces one record, without fsync.
func (s *slots) put(slot int, payload []byte) error {
	b := make([]byte, 0, slotMax)
	b = append(b, s.magic...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(payload)))
	b = append(b, payload...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	_, err := s.f.WriteAt(b[:cap(b)], int64(slot)*slotBlock)
	return err
}

// replace makes payload durable in both records, one after the other: whatever happens, one of them is whole, and once
// replace has returned either of them suffices.
func (s *slots) replace(payload []byte) error {
	for slot := range slotCount {
		if err := s.put(slot, payload); err != nil {
			return err
		}
		if err := s.sync(); err != nil {
			return err
		}
	}
	return nil
}

// sync is fdatasync: the blocks are allocated since createSlots, so no journal of the file system has to be waited for,
// and with it everybody else's writes.
func (s *slots) sync() error {
	for {
		if err := unix.Fdatasync(int(s.f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (s *slots) close() error { return errors.Join(s.f.Sync(), s.f.Close()) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
