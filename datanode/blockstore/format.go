package blockstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// LayoutVersion is the version of everything FORMAT.md describes. Version 1 had no packs; a volume of it becomes one of
// this version when it is opened. Other versions are refused.
const LayoutVersion = 3

// unsyncedLayout is that of a volume on which replicas are, or were, finalized without being synced: programs that do not know their names leave it alone.
const unsyncedLayout = 4

// Names in a volume's directory.
const (
	versionFile = "VERSION"
	lockFile    = "in_use.lock"
	probeFile   = "probe"
	blocksDir   = "blocks"
)

const chunk = datanode.ChunkSize

// suffix is the end of a checksum file's name. It is the state of the replica on disk, and one rename changes it.
type suffix uint8

const (
	sufTmp      suffix = iota + 1 // temporary: removed at start
	sufRBW                        // being written: RWR after a restart
	sufUnsynced                   // finalized without being synced: compared with its checksums at start
	sufMeta                       // finalized
)

func (s suffix) String() string { return [...]string{"", "tmp", "rbw", "unsynced", "meta"}[s] }

// subdirs returns the two directory levels of a block, HDFS's: 256 consecutive ids share a directory, so that blocks
// written together are made durable by one fsync of it.
func subdirs(id metadata.BlockID) (string, string) {
	return fmt.Sprintf("%02x", uint64(id)>>16&0x1f), fmt.Sprintf("%02x", uint64(id)>>8&0x1f)
}

func dataName(id metadata.BlockID) string { return "blk_" + strconv.FormatInt(int64(id), 10) }

func sumsName(id metadata.BlockID, gen metadata.Generation, s suffix) string {
	return dataName(id) + "_" + strconv.FormatUint(uint64(gen), 10) + "." + s.String()
}

// unsyncedName is the name of the checksum file of a replica that was finalized without being synced: it says at which length.
func unsyncedName(id metadata.BlockID, gen metadata.Generation, length int64) string {
	return fmt.Sprintf("%s_%d_%d.%s", dataName(id), gen, length, sufUnsynced)
}

// parseName takes a file name apart. A data file has suffix 0. Length is what an unsynced one says.
func parseName(name string) (id metadata.BlockID, sums sumsFile, ok bool) {
	rest, ok := strings.CutPrefix(name, "blk_")
	if !ok {
		return 0, sumsFile{}, false
	}
	digits, tail, isSums := strings.Cut(rest, "_")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, sumsFile{}, false
	}
	id = metadata.BlockID(n)
	if !isSums {
		return id, sumsFile{}, name == dataName(id)
	}
	digits, ext, _ := strings.Cut(tail, ".")
	digits, length, isLong := strings.Cut(digits, "_")
	g, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, sumsFile{}, false
	}
	sums.gen = metadata.Generation(g)
	if isLong {
		sums.suffix = sufUnsynced
		sums.length, err = strconv.ParseInt(length, 10, 64)
		return id, sums, err == nil && sums.length >= 0 && name == unsyncedName(id, sums.gen, sums.length)
	}
	for _, sums.suffix = range []suffix{sufTmp, sufRBW, sufMeta} {
		if ext == sums.suffix.String() {
			return id, sums, name == sumsName(id, sums.gen, sums.suffix)
		}
	}
	return 0, sumsFile{}, false
}

// The checksum file. Numbers are big-endian.
//
//	offset  size
//	  0      8   magic "HOPSSUM1"; the digit is the layout version
//	  8      1   type of the checksums below, 1 = CRC32, 2 = CRC32C (HDFS's numbers)
//	  9      1   1 if the writer of the block wants no checksums
//	 10      2   zero
//	 12      4   bytes per checksum, 512
//	 16      8   block id
//	 24      4   bytes per checksum that the writer of the block wants; 0 = 512
//	 28      4   CRC32C of bytes 0 to 27
//	 32     24   tail slot A
//	 56     24   tail slot B
//	 80     48   zero
//	128    4n    checksum of chunk 0, 1, ...; that of a partial last chunk covers the bytes there are
//
// A tail slot remembers a durable length inside a chunk, because the checksum of that chunk is overwritten when more
// bytes follow: {length 8, checksum of the chunk up to length 4, sequence 8, CRC32C of the 20 bytes before 4}.
const (
	sumsMagic  = "HOPSSUM1"
	headerSize = 128
	tailA      = 32
	tailSize   = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crcOf(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

func extend(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// chunksOf is how many checksums length bytes have.
func chunksOf(length int64) int64 { return (length + chunk - 1) / chunk }

// sumsSize is the size of the checksum file of length bytes.
func sumsSize(length int64) int64 { return headerSize + 4*chunksOf(length) }

// sumOffset is the offset of the checksum of the chunk that holds byte off.
func sumOffset(off int64) int64 { return headerSize + 4*(off/chunk) }

// tableOf is the polynomial of the checksums that are kept of a block.
func tableOf(c datanode.Checksum) *crc32.Table {
	if c.Stored() == datanode.CRC32 {
		return crc32.IEEETable
	}
	return castagnoli
}

// maxBytesPer is the most that one checksum may be wanted for.
const maxBytesPer = 16 << 20

func encodeHeader(id metadata.BlockID, c datanode.Checksum) []byte {
	b := make([]byte, headerSize)
	copy(b, sumsMagic)
	b[8] = byte(c.Stored())
	if c.Type == datanode.NoChecksum {
		b[9] = 1
	}
	binary.BigEndian.PutUint32(b[12:], chunk)
	binary.BigEndian.PutUint64(b[16:], uint64(id))
	if c.BytesPer != chunk {
		binary.BigEndian.PutUint32(b[24:], c.BytesPer)
	}
	binary.BigEndian.PutUint32(b[28:], crcOf(b[:28]))
	return b
}

// decodeHeader reads the header of the checksum file of id.
func decodeHeader(b []byte, id metadata.BlockID) (datanode.Checksum, error) {
	if err := checkHeader(b, id); err != nil {
		return datanode.Checksum{}, err
	}
	c := datanode.Checksum{Type: datanode.ChecksumType(b[8]), BytesPer: binary.BigEndian.Uint32(b[24:])}
	if b[9] == 1 {
		c.Type = datanode.NoChecksum
	}
	if c.BytesPer == 0 {
		c.BytesPer = chunk
	}
	return c, nil
}

// checkHeader says what is wrong with it.
func checkHeader(b []byte, id metadata.BlockID) error {
	switch {
	case len(b) < headerSize:
		return fmt.Errorf("checksum file of block %d has %d bytes, fewer than its header: %w", id, len(b), metadata.ErrCorrupt)
	case string(b[:8]) != sumsMagic:
		return fmt.Errorf("checksum file of block %d begins with %q instead of %q: %w", id, b[:8], sumsMagic, metadata.ErrCorrupt)
	case binary.BigEndian.Uint32(b[28:]) != crcOf(b[:28]):
		return fmt.Errorf("header of the checksum file of block %d does not match its checksum: %w", id, metadata.ErrCorrupt)
	case metadata.BlockID(binary.BigEndian.Uint64(b[16:])) != id:
		return fmt.Errorf("checksum file of block %d says that it is of block %d: %w", id, int64(binary.BigEndian.Uint64(b[16:])), metadata.ErrCorrupt)
	case b[8] != byte(datanode.CRC32) && b[8] != byte(datanode.CRC32C) || binary.BigEndian.Uint32(b[12:]) != chunk:
		return fmt.Errorf("checksum file of block %d has checksums of type %d over %d bytes: %w", id, b[8], binary.BigEndian.Uint32(b[12:]), metadata.ErrCorrupt)
	case b[9] > 1 || b[9] == 1 && b[8] != byte(datanode.CRC32C) || binary.BigEndian.Uint32(b[24:]) > maxBytesPer:
		return fmt.Errorf("checksum file of block %d says that its writer wants what nobody can (%d, %d): %w", id, b[9], binary.BigEndian.Uint32(b[24:]), metadata.ErrCorrupt)
	}
	return nil
}

// tail is a durable length inside a chunk with the checksum of the chunk up to there.
type tail struct {
	length int64
	crc    uint32
	seq    uint64
}

func (t tail) encode() []byte {
	b := make([]byte, 0, tailSize)
	b = binary.BigEndian.AppendUint64(b, uint64(t.length))
	b = binary.BigEndian.AppendUint32(b, t.crc)
	b = binary.BigEndian.AppendUint64(b, t.seq)
	return binary.BigEndian.AppendUint32(b, crcOf(b))
}

// offset alternates, so that the slot of the last durable tail is never the one being overwritten.
func (t tail) offset() int64 { return tailA + int64(t.seq%2)*tailSize }

// decodeTails returns the valid tails of a header, the newest last.
func decodeTails(header []byte) []tail {
	var out []tail
	for i := range 2 {
		b := header[tailA+i*tailSize:][:tailSize]
		t := tail{
			length: int64(binary.BigEndian.Uint64(b)),
			crc:    binary.BigEndian.Uint32(b[8:]),
			seq:    binary.BigEndian.Uint64(b[12:]),
		}
		if t.seq > 0 && t.length > 0 && binary.BigEndian.Uint32(b[20:]) == crcOf(b[:20]) {
			out = append(out, t)
		}
	}
	if len(out) == 2 && out[0].seq > out[1].seq {
		out[0], out[1] = out[1], out[0]
	}
	return out
}

// fileNames are a replica's places.
func (v *volume) dirOf(id metadata.BlockID) string {
	a, b := subdirs(id)
	return filepath.Join(v.path, blocksDir, a, b)
}

func (v *volume) dataPath(id metadata.BlockID) string {
	return filepath.Join(v.dirOf(id), dataName(id))
}

func (v *volume) sumsPath(id metadata.BlockID, gen metadata.Generation, s suffix) string {
	return filepath.Join(v.dirOf(id), sumsName(id, gen, s))
}

// sumsPath is where the checksum file of a replica is that has one. r.mu is held, or r.io by who does not change them.
func (r *replica) sumsPath() string {
	if r.suffix == sufUnsynced {
		return filepath.Join(r.vol.dirOf(r.id), unsyncedName(r.id, r.gen, r.length))
	}
	return r.vol.sumsPath(r.id, r.gen, r.suffix)
}
