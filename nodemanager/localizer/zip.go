package localizer

import (
	"archive/zip"
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
)

// archive/zip reads the whole list of entries before it shows the first, at half a kilobyte each and without looking at
// how many the file says there are. So the list (the central directory, APPNOTE.TXT 4.3.12) is walked here first, which
// holds one header at a time, and then given to archive/zip in pieces.

// directory is where a zip file lists its entries.
type directory struct {
	at, size int64
	records  uint64
}

// The records of a zip file that are read or written here: signatures, and lengths without what varies (APPNOTE.TXT 4.3).
const (
	headerSignature    = 0x02014b50
	headerLength       = 46
	endSignature       = 0x06054b50
	endLength          = 22
	end64Signature     = 0x06064b50
	end64Length        = 56
	locator64Signature = 0x07064b50
	locator64Length    = 20
	zip64Extra         = 1
)

var errZip = errors.New("not a zip file")

// findDirectory reads the record at the end of the file.
func findDirectory(r io.ReaderAt, size int64) (d directory, err error) {
	tail := make([]byte, min(size, endLength+math.MaxUint16))
	if _, err := r.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return d, err
	}
	i := len(tail) - endLength
	for ; i >= 0; i-- {
		if binary.LittleEndian.Uint32(tail[i:]) == endSignature && int(binary.LittleEndian.Uint16(tail[i+20:])) <= len(tail)-i-endLength {
			break
		}
	}
	if i < 0 {
		return d, fmt.Errorf("%w: it has no record of its end", errZip)
	}
	end := tail[i:]
	records, length, at := binary.LittleEndian.Uint16(end[10:]), binary.LittleEndian.Uint32(end[12:]), binary.LittleEndian.Uint32(end[16:])
	d = directory{int64(at), int64(length), uint64(records)}
	limit := size - int64(len(tail)) + int64(i) // the directory lies before this
	if records == math.MaxUint16 || length == math.MaxUint32 || at == math.MaxUint32 {
		if d, limit, err = findDirectory64(r, limit, d); err != nil {
			return d, err
		}
	}
	if d.at < 0 || d.size < 0 || d.at > limit || d.size > limit-d.at {
		return d, fmt.Errorf("%w: its directory of %d bytes at %d lies outside", errZip, d.size, d.at)
	}
	return d, nil
}

// findDirectory64 reads the record of a file that is too large for the short one, which lies at end. Where there is none
// the short record, known, says what it means.
func findDirectory64(r io.ReaderAt, end int64, known directory) (directory, int64, error) {
	var locator [locator64Length]byte
	if end < int64(len(locator)) {
		return known, end, nil
	}
	if _, err := r.ReadAt(locator[:], end-int64(len(locator))); err != nil {
		return known, end, err
	}
	if binary.LittleEndian.Uint32(locator[:]) != locator64Signature {
		return known, end, nil
	}
	at := int64(binary.LittleEndian.Uint64(locator[8:]))
	if at < 0 || at > end-end64Length {
		return known, end, fmt.Errorf("%w: the record of its end lies outside", errZip)
	}
	var record [end64Length]byte
	if _, err := r.ReadAt(record[:], at); err != nil {
		return known, end, err
	}
	if binary.LittleEndian.Uint32(record[:]) != end64Signature {
		return known, end, fmt.Errorf("%w: the record of its end is not where it should be", errZip)
	}
	d := directory{
		records: binary.LittleEndian.Uint64(record[32:]),
		size:    int64(binary.LittleEndian.Uint64(record[40:])),
		at:      int64(binary.LittleEndian.Uint64(record[48:])),
	}
	return d, at, nil
}

// walk calls f with the header of each entry, which is f's until the next call.
func (d directory) walk(r io.ReaderAt, f func(header []byte) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(r, d.at, d.size), 1<<16)
	header := make([]byte, headerLength, 1<<10)
	left := d.size
	for n := uint64(0); left > 0; n++ {
		header = header[:headerLength]
		if _, err := io.ReadFull(in, header); err != nil || binary.LittleEndian.Uint32(header) != headerSignature || n == d.records {
			return fmt.Errorf("%w: entry %d of the %d in its directory is damaged", errZip, n, d.records)
		}
		more := 0
		for _, at := range []int{28, 30, 32} { // the lengths of name, extra and comment
			more += int(binary.LittleEndian.Uint16(header[at:]))
		}
		header = append(header, make([]byte, more)...)
		if _, err := io.ReadFull(in, header[headerLength:]); err != nil {
			return fmt.Errorf("%w: entry %d of the %d in its directory is cut off", errZip, n, d.records)
		}
		if err := f(header); err != nil {
			return err
		}
		left -= int64(len(header))
		if left == 0 && n+1 == d.records {
			return nil
		}
	}
	if d.records != 0 {
		return fmt.Errorf("%w: its directory does not hold the %d entries that it announces", errZip, d.records)
	}
	return nil
}

// announced is the size that an entry's header promises, unpacked.
func announced(header []byte) uint64 {
	size := binary.LittleEndian.Uint32(header[24:])
	if size != math.MaxUint32 {
		return uint64(size)
	}
	extra := header[headerLength+int(binary.LittleEndian.Uint16(header[28:])):]
	extra = extra[:binary.LittleEndian.Uint16(header[30:])]
	for len(extra) >= 4 {
		id, n := binary.LittleEndian.Uint16(extra), int(binary.LittleEndian.Uint16(extra[2:]))
		extra = extra[4:]
		if n > len(extra) {
			break
		}
		if id == zip64Extra && n >= 8 {
			return binary.LittleEndian.Uint64(extra)
		}
		extra = extra[n:]
	}
	return uint64(size)
}

// A piece of the directory is given to archive/zip when it has so many entries or bytes.
const (
	pieceRecords = 1000
	pieceBytes   = 256 << 10
)

// each calls f with every entry.
func (d directory) each(r io.ReaderAt, f func(*zip.File) error) error {
	var piece []byte
	records := 0
	flush := func() error {
		view := &part{r, d.at, append(piece, endOf(d.at, len(piece), records)...)}
		z, err := zip.NewReader(view, view.at+int64(len(view.tail)))
		if err == nil && len(z.File) != records {
			err = zip.ErrFormat
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errZip, err)
		}
		for _, file := range z.File {
			if err := f(file); err != nil {
				return err
			}
		}
		piece, records = piece[:0], 0
		return nil
	}
	err := d.walk(r, func(header []byte) error {
		piece = append(piece, header...)
		if records++; records < pieceRecords && len(piece) < pieceBytes {
			return nil
		}
		return flush()
	})
	if err == nil && records > 0 {
		err = flush()
	}
	return err
}

// part is a file whose end is another one from byte at on.
type part struct {
	io.ReaderAt
	at   int64
	tail []byte
}

func (p *part) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fs.ErrInvalid
	}
	if off < p.at {
		n, err = p.ReaderAt.ReadAt(b[:min(int64(len(b)), p.at-off)], off)
		if n == len(b) || off+int64(n) < p.at {
			return n, err
		}
	}
	if over := off + int64(n) - p.at; over < int64(len(p.tail)) {
		n += copy(b[n:], p.tail[over:])
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// endOf makes the records at the end of a zip file with a directory of so many bytes and entries at the place at. It is the
// long form always, which can say any place.
func endOf(at int64, size, records int) []byte {
	e := binary.LittleEndian
	b := make([]byte, end64Length+locator64Length+endLength)
	e.PutUint32(b, end64Signature)
	e.PutUint64(b[4:], end64Length-12) // of what follows
	e.PutUint64(b[24:], uint64(records))
	e.PutUint64(b[32:], uint64(records))
	e.PutUint64(b[40:], uint64(size))
	e.PutUint64(b[48:], uint64(at))
	locator := b[end64Length:]
	e.PutUint32(locator, locator64Signature)
	e.PutUint64(locator[8:], uint64(at)+uint64(size))
	e.PutUint32(locator[16:], 1) // disks
	end := locator[locator64Length:]
	e.PutUint32(end, endSignature)
	e.PutUint16(end[8:], math.MaxUint16)
	e.PutUint16(end[10:], math.MaxUint16)
	e.PutUint32(end[12:], math.MaxUint32)
	e.PutUint32(end[16:], math.MaxUint32)
	return b
}

// zip unpacks a zip file. sums, where it is not nil, receives the sha256 of every file by name; then the archive is a code
// artifact, and must be small enough for a manifest to list it.
func (u *unpacking) zip(b *blob, sums map[string][sha256.Size]byte) error {
	d, err := findDirectory(b, b.size)
	if err != nil {
		return err
	}
	if d.records > uint64(max(0, u.entries)) {
		return fmt.Errorf("%w: its directory announces %d, left are %d", errMany, d.records, max(0, u.entries))
	}
	var bytes uint64
	listed := 0
	err = d.walk(b, func(header []byte) error {
		n := announced(header)
		if bytes += n; n > uint64(max(0, u.bytes)) || bytes > uint64(max(0, u.bytes)) {
			return errLarge
		}
		if listed += 2*sha256.Size + int(binary.LittleEndian.Uint16(header[28:])); sums != nil && listed > maxManifest {
			return fmt.Errorf("has more files than a %s may list", ManifestName)
		}
		return u.ctx.Err()
	})
	if err != nil {
		return err
	}
	if err := u.disk.takes(u.dir, int64(bytes), int64(d.records)); err != nil {
		return err
	}
	return d.each(b, func(f *zip.File) error { return u.zipped(f, sums) })
}

// zipped unpacks one entry.
func (u *unpacking) zipped(f *zip.File, sums map[string][sha256.Size]byte) error {
	if f.UncompressedSize64 > math.MaxInt64 {
		return errLarge
	}
	size := int64(f.UncompressedSize64)
	if err := u.entry(size); err != nil {
		return err
	}
	name, err := entryName(f.Name)
	if err != nil || name == "" {
		return err
	}
	if sums != nil && name == ManifestName && size > maxManifest {
		return errManifest(size)
	}
	mode := f.Mode()
	if u.only != nil && (mode.IsDir() || !u.only.MatchString(name)) {
		return nil
	}
	if mode.IsDir() {
		return u.makeDir(name)
	}
	if !mode.IsRegular() && mode&fs.ModeSymlink == 0 {
		return fmt.Errorf("entry %.200q is neither file, directory nor symbolic link", f.Name)
	}
	in, err := f.Open()
	if err != nil {
		return fmt.Errorf("entry %.200q: %w", f.Name, err)
	}
	defer in.Close()
	if mode&fs.ModeSymlink != 0 {
		target, err := io.ReadAll(io.LimitReader(in, 4097))
		if err != nil {
			return fmt.Errorf("entry %.200q: %w", f.Name, err)
		}
		return u.symlink(name, string(target))
	}
	sum, err := u.file(name, in, size, mode)
	if err == nil && sums != nil {
		sums[name] = sum
	}
	return err
}
