package tensorboard

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testdata/tensorboard.tfevents was written by TensorBoard 2.21.0's own record writer and protos.
var golden = []Event{
	{Time: at(1700000000.25), Version: Version},
	{Time: at(1700000001.5), Step: 4, Start: true},
	{Time: at(1700000002), Step: 4, Scalars: []Scalar{{"accuracy", 0.8125}}},
	{Time: at(1700000003), Step: 5, Scalars: []Scalar{{"accuracy", 0.83}, {"loss/train", float32(math.Inf(1))}}},
	{Time: at(1700000004), Step: 0, Scalars: []Scalar{{"größe", 0}}},
	{Time: at(1700000005), Step: 300000000000, Scalars: []Scalar{{"accuracy", -1e-30}}},
}

func at(sec float64) time.Time { return time.UnixMicro(int64(sec * 1e6)) }

func TestBytesAreTensorBoardsOwn(t *testing.T) {
	want, err := os.ReadFile("testdata/tensorboard.tfevents")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, golden[0].Time)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range golden[1:] {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("got\n%x\nwant\n%x", b.Bytes(), want)
	}
}

func TestReadsTensorBoardsOwn(t *testing.T) {
	data, err := os.ReadFile("testdata/tensorboard.tfevents")
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(data))
	for i, want := range golden {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("event %d (-want +got):\n%s", i, diff)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestATornFileEndsWithWhatIsWhole(t *testing.T) {
	data, err := os.ReadFile("testdata/tensorboard.tfevents")
	if err != nil {
		t.Fatal(err)
	}
	for cut := range data {
		r := NewReader(bytes.NewReader(data[:cut]))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if err != io.EOF && err != io.ErrUnexpectedEOF {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	data, err := os.ReadFile("testdata/tensorboard.tfevents")
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(data) * 8 {
		b := bytes.Clone(data)
		b[bit/8] ^= 1 << (bit % 8)
		r := NewReader(bytes.NewReader(b))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d: %v", bit, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	data, err := os.ReadFile("testdata/tensorboard.tfevents")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(AppendRecord(nil, []byte{0x2a, 0xff, 0xff, 0xff}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			if _, err := r.Next(); err != nil {
				return
			}
		}
	})
}
