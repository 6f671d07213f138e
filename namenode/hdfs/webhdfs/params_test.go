package webhdfs

import (
	"net/url"
	"testing"
)

// A request means the same however often it is asked, and to namenodes what it means to datanodes.
func TestOfTwoSpellingsOfAParameterTheSameOneCounts(t *testing.T) {
	query, err := url.ParseQuery("oP=LISTSTATUS&op=DELETE&Op=MKDIRS&op=OPEN&OP=CREATE&user.name=ann&User.Name=bob")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if p := paramsOf(query); p["op"] != "CREATE" || p["user.name"] != "bob" {
			t.Fatalf("%v", p)
		}
	}
}
