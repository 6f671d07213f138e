package yarnpb

import (
	"net/url"
	"testing"
)

// Names of files may hold what has a meaning in a URI.
func TestURL(t *testing.T) {
	for _, test := range []struct {
		p    *URLProto
		want string
	}{
		{&URLProto{File: new("/a b%20?c#d")}, "/a b%20?c#d"},
		{&URLProto{Scheme: new("hdfs"), Host: new("nn"), Port: new(int32(8020)), File: new("/a%20?c#d")}, "hdfs://nn:8020/a%2520%3Fc%23d"},
		{&URLProto{Scheme: new("hdfs"), Host: new("cluster"), File: new("/x")}, "hdfs://cluster/x"},
		{&URLProto{Scheme: new("file"), File: new("/x")}, "file:///x"},
	} {
		got := URL(test.p)
		if got != test.want {
			t.Errorf("%v: %s, want %s", test.p, got, test.want)
		}
		if test.p.Scheme == nil {
			continue
		}
		if u, err := url.Parse(got); err != nil || u.Path != test.p.GetFile() {
			t.Errorf("%s: %v %v", got, u, err)
		}
	}
}
