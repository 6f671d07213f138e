package token

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

func TestFileKeepsWhatItBrings(t *testing.T) {
	am := Entry{"", Token{Identifier: []byte("attempt"), Password: []byte("secret"), Kind: "YARN_AM_RM_TOKEN"}}
	theirs := Entry{"nn:8020", Token{Identifier: []byte("old"), Password: []byte("p"), Kind: Kind, Service: "nn:8020"}}
	ours := Entry{"nn:8020", Token{Identifier: []byte("new"), Password: []byte("q"), Kind: Kind, Service: "nn:8020"}}
	f := File{Credentials{am, theirs}, []Secret{{"MapReduceShuffleToken", []byte{1, 2, 3}}}}
	got, err := ParseFile(append(f.Encode(), make([]byte, 40)...)) // padded, as Spark's is
	if err != nil || !reflect.DeepEqual(got, f) {
		t.Fatalf("%v %v", got, err)
	}
	got.Add(Credentials{ours})
	if want := (Credentials{am, ours}); !reflect.DeepEqual(got.Tokens, want) || len(got.Secrets) != 1 {
		t.Errorf("%v", got)
	}
	// The bytes of a recorded launch (Spark 4.0.1, master): one token without alias and service, no secret.
	recorded := append([]byte("HDTS\x00\x01\x00\x02ab\x01c\x10YARN_AM_RM_TOKEN\x00\x00"), 0, 0)
	got, err = ParseFile(recorded)
	if err != nil || len(got.Tokens) != 1 || got.Tokens[0].Token.Kind != "YARN_AM_RM_TOKEN" || !bytes.Equal(got.Encode(), recorded[:len(recorded)-2]) {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", "HDT", "HDTS\x02", "HDTS\x00\x7f\x00", "HDTS\x00\x00", "HDTS\x00\x01\x00\x02a", "HDTS\x00\x00\x01\x01a\x05b"} {
		if _, err := ParseFile([]byte(bad)); !errors.Is(err, ErrForm) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Version 1, in protobufs, padded as Hadoop's buffers do: what the resource manager has put together is read at the node.
func TestFileInProtobufsIsPadded(t *testing.T) {
	am := Token{Identifier: []byte("attempt"), Password: []byte("secret"), Kind: "YARN_AM_RM_TOKEN"}
	file, err := Prepend([]byte("HDTS\x01\x00"+string(make([]byte, 40))), am)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseFile(file)
	if err != nil || len(got.Tokens) != 1 || !reflect.DeepEqual(got.Tokens[0].Token, am) || len(got.Secrets) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"HDTS\x01", "HDTS\x01\x02\x0a", "HDTS\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		if _, err := ParseFile([]byte(bad)); !errors.Is(err, ErrForm) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
