package dtp

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantBytes(t *testing.T, got []byte, want string) {
	t.Helper()
	if h := hex.EncodeToString(got); h != want {
		t.Errorf("got  %s\nwant %s", h, want)
	}
}

func TestResponsesAreHadoopsBytes(t *testing.T) {
	for _, c := range []struct {
		name    string
		message *hadooppb.BlockOpResponseProto
		want    string
	}{
		{"write set up", Success(), "0408001200"},
		{"read", ReadSuccess(DefaultChecksum, 0), "0d080022090a0508021080041000"},
	} {
		var b bytes.Buffer
		if err := WriteResponse(&b, c.message); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, b.Bytes(), c.want)
		back, err := ReadResponse(bufio.NewReader(&b))
		if err != nil || !proto.Equal(back, c.message) {
			t.Errorf("%s: read back %v, %v", c.name, back, err)
		}
	}
	var b bytes.Buffer
	if err := WriteMessage(&b, &hadooppb.ClientReadStatusProto{Status: hadooppb.Status_CHECKSUM_OK.Enum()}); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, b.Bytes(), "020806")
}

func TestAcksAreHadoopsBytes(t *testing.T) {
	for _, c := range []struct {
		ack  Ack
		want string
	}{
		{Ack{Seqno: 0, Replies: make([]hadooppb.Status, 3)}, "0f080010001000100018002203000000"},
		{Ack{Seqno: HeartbeatSeqno, Replies: make([]hadooppb.Status, 1)}, "0708011000220100"},
	} {
		got := AppendAck(nil, &c.ack)
		wantBytes(t, got, c.want)
		var back Ack
		if err := ReadAck(bufio.NewReader(bytes.NewReader(got)), &back); err != nil {
			t.Fatal(err)
		}
		if back.Seqno != c.ack.Seqno || len(back.Replies) != len(c.ack.Replies) {
			t.Errorf("read back %+v, want %+v", back, c.ack)
		}
	}
}

func TestPacketHeadersAreHadoopsBytes(t *testing.T) {
	got := AppendHeader(nil, Header{Offset: 65024, Seqno: 1, DataLen: 512}, 4)
	wantBytes(t, got, "00000208"+"0019"+"0900fe00000000000011010000000000000018002500020000")
	h, err := parseHeader(unhex(t, "09000000000000000011ffffffffffffffff180025000000002800"))
	if err != nil || !h.Heartbeat() || h.Sync || h.Last || h.DataLen != 0 {
		t.Errorf("heartbeat of 27 bytes: %+v, %v", h, err)
	}
}
