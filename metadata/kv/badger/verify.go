package badger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/badger/v4/y"
	"google.golang.org/protobuf/proto"
)

// badger checks a block when it reads it, and then goes on as if there was no such block: a key in it is not found, a scan ends early, and
// merging drops what it had. So the tables that a process finds are read once, from their files: at once when they are small, else beside
// the work. Tables that are made later come from those.
const (
	// verifyAtOnce is how many bytes of tables are read before Open returns.
	verifyAtOnce = 64 << 20
	// verifyPerSecond is how many are read per second after that.
	verifyPerSecond = 64 << 20
)

var errRotten = errors.New("a table is damaged")

// verify reads the tables that there are. Until it has, badger keeps those that it merges into others: what a merge takes from a damaged
// table would be missing, and nothing would be left that tells.
func (s *Store) verify() error {
	release := s.holdTables()
	tables, err := s.db.tables()
	if err != nil {
		release()
		return err
	}
	found := map[string]fs.FileInfo{}
	var sum int64
	for path := range tables { // other files are being written, or removed like those without a size
		if info, err := os.Stat(path); err == nil && info.Size() > 0 {
			found[path] = info
			sum += info.Size()
		}
	}
	if sum <= verifyAtOnce {
		defer release()
		for path, info := range found {
			if _, err := verifyTable(path, info); err != nil {
				return err
			}
		}
		return nil
	}
	stop := make(chan struct{})
	s.stop = stop
	s.verifying.Go(func() {
		defer release()
		for path, info := range found {
			n, err := verifyTable(path, info)
			if err != nil {
				s.rot(err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(n) * time.Second / verifyPerSecond):
			}
		}
	})
	return nil
}

// holdTables keeps badger from removing the present tables until release is called, which has to be before the database is closed: badger
// removes files by their names.
func (s *Store) holdTables() (release func()) {
	opt := badger.DefaultIteratorOptions
	opt.PrefetchValues = false
	var held []func()
	for _, d := range s.db {
		txn := d.NewTransactionAt(0, false)
		held = append(held, txn.NewIterator(opt).Close, txn.Discard)
	}
	return func() {
		for _, free := range held {
			free()
		}
	}
}

// endVerifying ends a verification that is under way, and reports whether there was one that might be. mu is held, or nobody else has the store.
func (s *Store) endVerifying() (was bool) {
	if was = s.stop != nil; was {
		close(s.stop)
		s.stop = nil
	}
	s.verifying.Wait()
	return was
}

// rot ends the use of a store whose content is damaged.
func (s *Store) rot(err error) {
	text := err.Error()
	s.complaint.CompareAndSwap(nil, &text)
	s.rotten.Store(&err)
	s.opt.Logger.Error("the checkpoint is damaged and cannot be used any more", "dir", s.dir, "error", err)
	if err := s.condemn(); err != nil {
		s.opt.Logger.Error("the damaged checkpoint cannot be condemned", "dir", s.dir, "error", err)
	}
}

// sound is nil unless the store is known to be damaged.
func (s *Store) sound() error {
	if err := s.rotten.Load(); err != nil {
		return *err
	}
	return nil
}

// verifyTable reads a table of badger and checks the sums of its index and its blocks. It returns how many bytes it has read. A table that
// has gone is sound, because it was made after those that are held, also if there is another one of its name, which is being written perhaps,
// and one that is going: badger cuts it to nothing before it removes it.
//
//	block*  index  length of the index(4)  sum  length of the sum(4)      big endian
//	block:  data  sum  length of the sum(4)
func verifyTable(path string, found fs.FileInfo) (int, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(now, found) {
		return 0, err
	}
	b := make([]byte, found.Size())
	if _, err = f.ReadAt(b, 0); err == nil {
		err = verifyBlocks(b)
	}
	if err == nil {
		return len(b), nil
	}
	if now, serr := f.Stat(); serr == nil && now.Size() != found.Size() {
		return len(b), nil
	}
	return len(b), fmt.Errorf("%s: %w: %w", path, errRotten, err)
}

func verifyBlocks(b []byte) (err error) {
	defer func() {
		if p := recover(); p != nil { // an index with a good sum and no sense
			err = fmt.Errorf("the index cannot be read: %v", p)
		}
	}()
	rest, sum, err := cutSum(b)
	if err != nil {
		return err
	}
	if len(rest) < 4 {
		return errors.New("no index")
	}
	size := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	rest = rest[:len(rest)-4]
	if size > int64(len(rest)) {
		return fmt.Errorf("an index of %d bytes", size)
	}
	index := rest[int64(len(rest))-size:]
	if err := y.VerifyChecksum(index, sum); err != nil {
		return err
	}
	blocks := fb.GetRootAsTableIndex(index, 0)
	var at fb.BlockOffset
	for i := range blocks.OffsetsLength() {
		blocks.Offsets(&at, i)
		from, to := int64(at.Offset()), int64(at.Offset())+int64(at.Len())
		if to > int64(len(b)) {
			return fmt.Errorf("block %d ends at %d", i, to)
		}
		block, sum, err := cutSum(b[from:to])
		if err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		if err := y.VerifyChecksum(block, sum); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
	}
	return nil
}

// cutSum takes the sum off the end of b.
func cutSum(b []byte) (rest []byte, sum *pb.Checksum, err error) {
	if len(b) < 4 {
		return nil, nil, errors.New("too short for a sum")
	}
	size := int64(binary.BigEndian.Uint32(b[len(b)-4:]))
	b = b[:len(b)-4]
	if size > int64(len(b)) {
		return nil, nil, fmt.Errorf("a sum of %d bytes", size)
	}
	sum = new(pb.Checksum)
	if err := proto.Unmarshal(b[int64(len(b))-size:], sum); err != nil {
		return nil, nil, err
	}
	return b[:int64(len(b))-size], sum, nil
}
