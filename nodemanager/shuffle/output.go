package shuffle

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/internal/security"
)

// The names of a map's files below the directory of its application (YarnOutputFiles), and the length of what the index says of a
// reduce: where its part starts, how long it is unpacked, and how long it is there, each eight bytes, the greatest first. Behind them
// all is the CRC32 of the index, as eight bytes (SpillRecord).
const (
	outputs     = "output"
	dataFile    = "file.out"
	indexFile   = "file.out.index"
	entryLength = 24
	crcLength   = 8
	// maxReduces bounds the reduces of a job, and with it the index, which is read for each request.
	maxReduces = 1 << 17
)

// part is a map's output for one reduce.
type part struct {
	header        []byte
	data          string // the file, below the application's directory
	start, length int64
}

// find looks a part up.
func find(root *os.Root, attempt string, reduce int) (part, error) {
	dir := path.Join(outputs, attempt)
	start, raw, length, err := lookUp(root, path.Join(dir, indexFile), reduce)
	if err != nil {
		return part{}, fmt.Errorf("map %s: %w", attempt, err)
	}
	p := part{header: header(attempt, length, raw, reduce), data: path.Join(dir, dataFile), start: start, length: length}
	f, size, err := open(root, p.data)
	if err != nil {
		return part{}, fmt.Errorf("map %s: %w", attempt, err)
	}
	f.Close()
	if start < 0 || raw < 0 || length < 0 || start > size || length > size-start {
		return part{}, fmt.Errorf("map %s: the index says that reduce %d has bytes %d to %d, and the file has %d", attempt, reduce, start, start+length, size)
	}
	return p, nil
}

// lookUp reads the entry of a reduce in an index, and holds the whole index against its sum. The index is never in memory as a whole: many
// requests may read large ones at a time.
func lookUp(root *os.Root, file string, reduce int) (start, raw, length int64, err error) {
	f, size, err := open(root, file)
	if err != nil {
		return 0, 0, 0, err
	}
	defer f.Close()
	entries := (size - crcLength) / entryLength
	if size < crcLength || (size-crcLength)%entryLength != 0 || entries > maxReduces {
		return 0, 0, 0, fmt.Errorf("an index of %d bytes is none", size)
	}
	if int64(reduce) >= entries {
		return 0, 0, 0, fmt.Errorf("reduce %d of %d", reduce, entries)
	}
	var entry [entryLength]byte
	var stored [crcLength]byte
	sum, at := crc32.NewIEEE(), int64(reduce)*entryLength
	body := io.TeeReader(f, sum)
	_, err = io.CopyN(io.Discard, body, at)
	if err == nil {
		_, err = io.ReadFull(body, entry[:])
	}
	if err == nil {
		_, err = io.CopyN(io.Discard, body, size-crcLength-entryLength-at)
	}
	if err == nil {
		_, err = io.ReadFull(f, stored[:])
	}
	if err != nil {
		return 0, 0, 0, err
	}
	if uint64(sum.Sum32()) != binary.BigEndian.Uint64(stored[:]) {
		return 0, 0, 0, fmt.Errorf("the index is damaged")
	}
	number := func(i int) int64 { return int64(binary.BigEndian.Uint64(entry[8*i:])) }
	return number(0), number(1), number(2), nil
}

// header is what comes before the bytes of a part (ShuffleHeader): the map as a text, the length there and unpacked, and the reduce.
func header(attempt string, length, raw int64, reduce int) []byte {
	b := append(security.AppendVLong(nil, int64(len(attempt))), attempt...)
	b = security.AppendVLong(b, length)
	b = security.AppendVLong(b, raw)
	return security.AppendVLong(b, int64(reduce))
}

// open opens a file of an application's directory and says how long it is. The application's containers may put anything there: a link
// does not lead out (os.Root), a pipe is not waited for, and another user's file to which it has given a name (link(2)) is refused.
func open(root *os.Root, name string) (*os.File, int64, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if err == nil {
		err = owned(root, name, info)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func owned(root *os.Root, name string, file fs.FileInfo) error {
	dir, err := root.Stat(".")
	if err != nil {
		return err
	}
	owner, ok := dir.Sys().(*syscall.Stat_t)
	found, ok2 := file.Sys().(*syscall.Stat_t)
	if !ok || !ok2 || owner.Uid != found.Uid {
		return &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return nil
}
