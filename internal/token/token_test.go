package token

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// What Hadoop 3.4.3 writes.
const (
	javaID       = "0005616c696365047961726e056f6f7a69658a018bcfe568008a018bf3f1ec008e012c07"
	javaPassword = "8e6fc368ff44194213fda6a8968571173c7e8092"
	javaText     = "JAAFYWxpY2UEeWFybgVvb3ppZYoBi8_laACKAYvz8ewAjgEsBxSOb8No_0QZQhP9pqiWhXEXPH6AkhVIREZTX0RFTEVHQVRJT05fVE9LRU4OMTI3LjAuMC4xOjgwMjA"
	javaWritable = "4844545300010e3132372e302e302e313a38303230240005616c696365047961726e056f6f7a69658a018bcfe568008a018bf3f1ec008e012c07148e6fc368ff44194213fda6a8968571173c7e809215484446535f44454c45474154494f4e5f544f4b454e0e3132372e302e302e313a3830323001016b06736563726574"
	javaProtobuf = "484454530184010a750a0e3132372e302e302e313a3830323012630a240005616c696365047961726e056f6f7a69658a018bcfe568008a018bf3f1ec008e012c0712148e6fc368ff44194213fda6a8968571173c7e80921a15484446535f44454c45474154494f4e5f544f4b454e220e3132372e302e302e313a38303230120b0a016b1a06736563726574"
	javaString   = "Kind: HDFS_DELEGATION_TOKEN, Service: 127.0.0.1:8020, Ident: (token for alice: HDFS_DELEGATION_TOKEN owner=alice, renewer=yarn, realUser=oozie, issueDate=1700000000000, maxDate=1700604800000, sequenceNumber=300, masterKeyId=7)"
)

var alice = Identifier{Owner: "alice", Renewer: "yarn", RealUser: "oozie", Issued: 1700000000000, MaxDate: 1700604800000, Sequence: 300, Key: 7}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func javaToken(t testing.TB) Token {
	return Token{Identifier: unhex(t, javaID), Password: unhex(t, javaPassword), Kind: Kind, Service: "127.0.0.1:8020"}
}

func TestJavaToken(t *testing.T) {
	if got := hex.EncodeToString(alice.Encode()); got != javaID {
		t.Errorf("identifier %s, want %s", got, javaID)
	}
	if id, err := ParseIdentifier(unhex(t, javaID)); err != nil || id != alice {
		t.Errorf("%+v, %v", id, err)
	}
	if got := hex.EncodeToString(Password([]byte("a key"), alice.Encode())); got != javaPassword {
		t.Errorf("password %s, want %s", got, javaPassword)
	}
	tok := javaToken(t)
	if got := tok.Text(); got != javaText {
		t.Errorf("text %s, want %s", got, javaText)
	}
	if got, err := ParseText(javaText + "=="); err != nil || !reflect.DeepEqual(got, tok) {
		t.Errorf("%+v, %v", got, err)
	}
	if got := tok.String(); got != javaString || strings.Contains(got, javaPassword) {
		t.Errorf("%s, want %s", got, javaString)
	}
}

func TestJavaCredentials(t *testing.T) {
	want := Credentials{{"127.0.0.1:8020", javaToken(t)}}
	for name, file := range map[string]string{"writable": javaWritable, "protobuf": javaProtobuf} {
		b := unhex(t, file)
		if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for n := range b {
			if got, err := Parse(b[:n]); !errors.Is(err, ErrForm) {
				t.Errorf("%s cut to %d bytes: %+v, %v", name, n, got, err)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	t.Setenv(LocationVariable, path)
	got, err := FromEnvironment()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, ok := got.For("10.0.0.1:8020"); ok {
		t.Error("a token for another service is taken")
	}
	if tok, ok := got.For("ha-hdfs:x", "127.0.0.1:8020"); !ok || !reflect.DeepEqual(tok, want[0].Token) {
		t.Errorf("%v", tok)
	}
	t.Setenv(LocationVariable, path+"x")
	if _, err := FromEnvironment(); err == nil || !strings.Contains(err.Error(), "which is not there") {
		t.Errorf("%v", err)
	}
}

func TestBadFiles(t *testing.T) {
	for name, b := range map[string]string{
		"empty": "", "another file": "PK\x03\x04", "a later version": "HDTS\x02", "many tokens": "HDTS\x00\x8d\x7f\xff\xff", "less than none": "HDTS\x00\xff",
		"a long name": "HDTS\x00\x01\x8d\x7f\xff\xff",
	} {
		if c, err := Parse([]byte(b)); !errors.Is(err, ErrForm) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	for _, text := range []string{"", "%", "AAAA=A", strings.Repeat("A", MaxText+1), javaText + "AAAA"} {
		if tok, err := ParseText(text); !errors.Is(err, ErrForm) {
			t.Errorf("%.20s: %v, %v", text, tok, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add([]byte(javaText))
	f.Add(unhex(f, javaWritable))
	f.Add(unhex(f, javaProtobuf))
	f.Add(unhex(f, javaID))
	f.Fuzz(func(t *testing.T, b []byte) {
		if tok, err := ParseText(string(b)); err == nil {
			if again, err := ParseText(tok.Text()); err != nil || !reflect.DeepEqual(again, tok) {
				t.Fatalf("%v: %v, %v", tok, again, err)
			}
		}
		if id, err := ParseIdentifier(b); err == nil {
			if again, err := ParseIdentifier(id.Encode()); err != nil || again != id {
				t.Fatalf("%v: %v, %v", id, again, err)
			}
		}
		if c, err := Parse(b); err == nil {
			_, _ = c.For("127.0.0.1:8020")
			_ = c.Encode()
		}
	})
}
