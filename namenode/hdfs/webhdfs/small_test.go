package webhdfs

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"weak"

	"github.com/gohops/hops/internal/batchread"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// shelf is a service that makes a body of 64 KiB for whatever block is asked for, and counts how many are still in memory at the end.
type shelf struct {
	namenode.Service
	alive int
}

func (s *shelf) Active() bool { return true }

func shelved(id metadata.BlockID) []byte {
	return bytes.Repeat([]byte{byte(id), byte(id >> 8)}, metadata.MaxBody/2)
}

func (s *shelf) Bodies(_ context.Context, _ string, wanted []namenode.WantedBody, each func(i int, data []byte, err error)) error {
	made := make([]weak.Pointer[byte], len(wanted))
	for i := len(wanted) - 1; i >= 0; i-- {
		body := shelved(wanted[i].Block.ID)
		made[i] = weak.Make(&body[0])
		if wanted[i].Block.Generation == 404 {
			each(i, nil, metadata.Errorf(metadata.ErrReplicaNotFound, "it is not here"))
			continue
		}
		each(i, body, nil)
	}
	runtime.GC()
	for _, p := range made {
		if p.Value() != nil {
			s.alive++
		}
	}
	return nil
}

// Of each body that a READMANY asks a byte of a byte is kept, and not the body: a request is charged for what it asks for.
func TestReadManyKeepsWhatIsAskedFor(t *testing.T) {
	const n = 1000
	service := &shelf{}
	door := security.NewDoor(security.Config{Owner: func(security.ConnAddrs) (uint32, error) { return 70001, nil }})
	server := httptest.NewServer(New(service, door, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	request := batchread.NewRequest("BP-1")
	piece := func(i int) batchread.Piece {
		p := batchread.Piece{Block: metadata.Block{ID: metadata.BlockID(1000 + i)}, Offset: int64(i), Length: 1 + i%3}
		switch i {
		case 5:
			p.Block.Generation = 404
		case 7:
			p.Offset = metadata.MaxBody
		}
		return p
	}
	for i := range n {
		request.Add(piece(i))
	}
	response, err := http.Post(server.URL+Prefix+"/?op=READMANY&user.name=70001", batchread.ContentType, bytes.NewReader(request.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %.300q %v", response.Status, b, err)
	}
	pieces, problems, err := batchread.ParseAnswer(b)
	if err != nil || len(pieces) != n || len(problems) != 2 || problems[0].Index != 5 || problems[1].Index != 7 {
		t.Fatal(len(pieces), problems, err)
	}
	for i, got := range pieces {
		p := piece(i)
		if i == 5 || i == 7 {
			continue
		}
		if want := shelved(p.Block.ID)[p.Offset:][:p.Length]; !bytes.Equal(got, want) {
			t.Fatalf("piece %d is %x, not %x", i, got, want)
		}
	}
	if service.alive > 2 {
		t.Errorf("%d of %d bodies are in memory when all were read", service.alive, n)
	}
}
