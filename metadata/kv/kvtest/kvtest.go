// Package kvtest holds what every kv.Store has to do, as tests.
package kvtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata/kv"
)

// Run tests a kind of store. open returns an empty one; reopen closes a store and returns what a new process would find.
func Run(t *testing.T, open func(t *testing.T) kv.Store, reopen func(t *testing.T, s kv.Store) kv.Store) {
	for name, test := range map[string]func(t *testing.T, s kv.Store, reopen func(kv.Store) kv.Store){
		"a view sees the newest version at or below its time": versions,
		"a scan is ordered and bounded":                       scans,
		"discarding keeps what newer views see":               discards,
		"synced writes are there after a restart":             restarts,
		"replace is all or nothing":                           replaces,
		"a condemned store starts empty":                      condemns,
		"sizes are bounded":                                   sizes,
		"a large batch arrives whole":                         large,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			test(t, s, func(s kv.Store) kv.Store { return reopen(t, s) })
		})
	}
}

func write(t *testing.T, s kv.Store, at uint64, pairs ...string) {
	t.Helper()
	b := s.Batch(at)
	defer b.Cancel()
	for i := 0; i < len(pairs); i += 2 {
		var err error
		if pairs[i+1] == "" {
			err = b.Delete([]byte(pairs[i]))
		} else {
			err = b.Put([]byte(pairs[i]), []byte(pairs[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

func dump(t *testing.T, s kv.Store, at uint64, prefix, from string) []string {
	t.Helper()
	v := s.View(at)
	defer v.Close()
	var got []string
	err := v.Scan([]byte(prefix), []byte(from), func(key, value []byte) bool {
		got = append(got, string(key)+"="+string(value))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func last(t *testing.T, s kv.Store, want uint64) {
	t.Helper()
	if got := s.Last(); got != want {
		t.Errorf("the last timestamp is %d, want %d", got, want)
	}
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func versions(t *testing.T, s kv.Store, reopen func(kv.Store) kv.Store) {
	write(t, s, 5, "a", "5", "b", "5")
	write(t, s, 7, "a", "7", "b", "")
	write(t, s, 9, "b", "9")
	for at, want := range map[uint64][]string{
		4: nil, 5: {"a=5", "b=5"}, 6: {"a=5", "b=5"}, 7: {"a=7"}, 8: {"a=7"}, 9: {"a=7", "b=9"}, kv.Newest: {"a=7", "b=9"},
	} {
		expect(t, dump(t, s, at, "", ""), want...)
	}
	v := s.View(7)
	defer v.Close()
	if got, err := v.Get([]byte("a")); err != nil || string(got) != "7" {
		t.Errorf("a is %q, %v", got, err)
	}
	for _, key := range []string{"b", "c", "aa"} {
		if got, err := v.Get([]byte(key)); !errors.Is(err, kv.ErrNotFound) {
			t.Errorf("%s is %q, %v", key, got, err)
		}
	}
	// A repetition at the same time, as after a torn checkpoint, says the same.
	write(t, s, 7, "a", "7", "b", "")
	expect(t, dump(t, s, 7, "", ""), "a=7")
}

func scans(t *testing.T, s kv.Store, _ func(kv.Store) kv.Store) {
	write(t, s, 1, "a", "1", "aa", "2", "ab", "3", "b", "4", "a\xff", "5", "\xff\xff", "6")
	expect(t, dump(t, s, 1, "", ""), "a=1", "aa=2", "ab=3", "a\xff=5", "b=4", "\xff\xff=6")
	expect(t, dump(t, s, 1, "a", ""), "a=1", "aa=2", "ab=3", "a\xff=5")
	expect(t, dump(t, s, 1, "a", "aa"), "aa=2", "ab=3", "a\xff=5")
	expect(t, dump(t, s, 1, "a", "aaa"), "ab=3", "a\xff=5")
	expect(t, dump(t, s, 1, "a", "b"))
	expect(t, dump(t, s, 1, "b", "a"), "b=4")
	expect(t, dump(t, s, 1, "\xff", ""), "\xff\xff=6")
	v := s.View(1)
	defer v.Close()
	seen := 0
	if err := v.Scan(nil, nil, func([]byte, []byte) bool { seen++; return seen < 2 }); err != nil || seen != 2 {
		t.Errorf("a scan that was stopped at the second saw %d, %v", seen, err)
	}
}

func discards(t *testing.T, s kv.Store, _ func(kv.Store) kv.Store) {
	for at := uint64(1); at <= 5; at++ {
		write(t, s, at, "a", fmt.Sprint(at), "gone", map[bool]string{true: "x"}[at < 3], "still", map[bool]string{true: "y"}[at < 5])
	}
	s.Discard(4)
	expect(t, dump(t, s, 4, "", ""), "a=4", "still=y")
	expect(t, dump(t, s, 5, "", ""), "a=5")
}

func restarts(t *testing.T, s kv.Store, reopen func(kv.Store) kv.Store) {
	write(t, s, 3, "a", "3", "b", "3")
	s = reopen(s)
	b := s.Batch(4) // without a Sync: a killed process loses nothing that was handed over
	b.Put([]byte("a"), []byte("4"))
	b.Delete([]byte("b"))
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	last(t, s, 4)
	s = reopen(s)
	last(t, s, 4)
	expect(t, dump(t, s, 3, "", ""), "a=3", "b=3")
	expect(t, dump(t, s, 4, "", ""), "a=4")
}

func replaces(t *testing.T, s kv.Store, reopen func(kv.Store) kv.Store) {
	write(t, s, 9, "old", "9")
	failure := errors.New("no more")
	err := s.Replace(20, func(put func(key, value []byte) error) error {
		if err := put([]byte("new"), []byte("20")); err != nil {
			return err
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("a fill that failed gave %v", err)
	}
	expect(t, dump(t, s, kv.Newest, "", ""), "old=9")
	s = reopen(s)
	expect(t, dump(t, s, kv.Newest, "", ""), "old=9")
	err = s.Replace(20, func(put func(key, value []byte) error) error { return put([]byte("new"), []byte("20")) })
	if err != nil {
		t.Fatal(err)
	}
	last(t, s, 20)
	expect(t, dump(t, s, 19, "", ""))
	expect(t, dump(t, s, 20, "", ""), "new=20")
	write(t, s, 21, "new", "21")
	s = reopen(s)
	expect(t, dump(t, s, 20, "", ""), "new=20")
	expect(t, dump(t, s, 21, "", ""), "new=21")
	// To a lower time, as when a snapshot of another history is installed.
	if err := s.Replace(2, func(func(key, value []byte) error) error { return nil }); err != nil {
		t.Fatal(err)
	}
	expect(t, dump(t, s, kv.Newest, "", ""))
}

func condemns(t *testing.T, s kv.Store, reopen func(kv.Store) kv.Store) {
	write(t, s, 1, "a", "1")
	if err := s.Condemn(); err != nil {
		t.Fatal(err)
	}
	s = reopen(s)
	expect(t, dump(t, s, kv.Newest, "", ""))
	write(t, s, 1, "a", "2")
	s = reopen(s)
	expect(t, dump(t, s, kv.Newest, "", ""), "a=2")
}

func sizes(t *testing.T, s kv.Store, reopen func(kv.Store) kv.Store) {
	key, value := bytes.Repeat([]byte("k"), kv.MaxKey), bytes.Repeat([]byte("v"), kv.MaxValue)
	b := s.Batch(1)
	defer b.Cancel()
	for name, err := range map[string]error{
		"an empty key":     b.Put(nil, nil),
		"a long key":       b.Put(append(key, 'k'), nil),
		"a long value":     b.Put([]byte("a"), append(value, 'v')),
		"a long key again": s.Replace(1, func(put func(key, value []byte) error) error { return put(append(key, 'k'), nil) }),
	} {
		if !errors.Is(err, kv.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(b.Put(key, []byte("1")), b.Put([]byte("a"), value), b.Put([]byte("b"), nil), b.Flush(), s.Sync()); err != nil {
		t.Fatal(err)
	}
	s = reopen(s)
	expect(t, dump(t, s, 1, "", ""), "a="+string(value), "b=", string(key)+"=1")
}

func large(t *testing.T, s kv.Store, reopen func(kv.Store) kv.Store) {
	const n = 50_000
	b := s.Batch(7)
	defer b.Cancel()
	for i := range n {
		key := fmt.Appendf(nil, "%08d", i)
		if err := b.Put(key, bytes.Repeat(key, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(b.Flush(), s.Sync()); err != nil {
		t.Fatal(err)
	}
	s = reopen(s)
	if got := dump(t, s, 7, "", ""); len(got) != n {
		t.Errorf("%d of %d are there", len(got), n)
	}
	v := s.View(7)
	defer v.Close()
	if got, err := v.Get([]byte("00031415")); err != nil || !bytes.HasPrefix(got, []byte("0003141500031415")) {
		t.Errorf("got %q, %v", got, err)
	}
}
