package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/gohops/hops/metadata"
)

// mark is the file "acked": the watermark outside of the log, for damage that takes the log's end with it. It is written
// after the log's fsync and not synced itself, so that what it says is true whenever it gets to the disk; envelopes say
// the same, one write late. The records are written in turn, little endian:
//
//	 0      8          16      24     32
//	+------+----------+-------+------+
//	| salt | sequence | acked | term |
//	+------+----------+-------+------+
//
// term is that of entry acked, 0 when it is not known.
type mark struct {
	slots *slots
	salt  salt
	seq   uint64
	acked uint64
	term  uint64
}

const (
	markMagic = "hopsACK1"
	markBytes = 32
)

func openMark(dir string) (*mark, error) {
	path := filepath.Join(dir, "acked")
	s, records, err := openSlots(path, markMagic)
	if errors.Is(err, fs.ErrNotExist) {
		m := &mark{}
		rand.Read(m.salt[:]) // never fails (crypto/rand)
		m.slots, err = createSlots(path, markMagic, m.encode())
		return m, err
	}
	if err != nil {
		return nil, err
	}
	m := &mark{slots: s}
	found := false
	for _, r := range records {
		if len(r) != markBytes {
			continue
		}
		if seq := binary.LittleEndian.Uint64(r[8:]); !found || seq > m.seq {
			found = true
			copy(m.salt[:], r)
			m.seq, m.acked, m.term = seq, binary.LittleEndian.Uint64(r[16:]), binary.LittleEndian.Uint64(r[24:])
		}
	}
	if !found {
		s.close()
		return nil, metadata.Errorf(metadata.ErrCorrupt, "%s is damaged", path)
	}
	return m, nil
}

func (m *mark) encode() []byte {
	b := append(make([]byte, 0, markBytes), m.salt[:]...)
	b = binary.LittleEndian.AppendUint64(b, m.seq)
	b = binary.LittleEndian.AppendUint64(b, m.acked)
	return binary.LittleEndian.AppendUint64(b, m.term)
}

// raise notes that entries up to acked, which has term, are durable.
func (m *mark) raise(acked, term uint64) error {
	m.seq++
	m.acked, m.term = acked, term
	return m.slots.put(int(m.seq%slotCount), m.encode())
}

// lower notes, durably, that entries above acked are about to be deleted.
func (m *mark) lower(acked, term uint64) error {
	if m.acked <= acked {
		return nil
	}
	m.seq++
	m.acked, m.term = acked, term
	return m.slots.replace(m.encode())
}

func (m *mark) close() error { return m.slots.close() }
