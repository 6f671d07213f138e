package account

import (
	"errors"
	"os/exec"
	"os/user"
	"slices"
	"strings"
	"testing"
)

func TestFindAgreesWithTheSystem(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	byLibrary, err := library(me.Username)
	if err != nil {
		t.Fatal(err)
	}
	found, err := Find(t.Context(), me.Username)
	if err != nil || found.UID != byLibrary.UID || found.GID != byLibrary.GID || found.Home != byLibrary.Home || !slices.Contains(found.Groups, found.GID) {
		t.Errorf("%+v, %v; the library says %+v", found, err, byLibrary)
	}
	asked, err := ask(t.Context(), me.Username)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	}
	slices.Sort(asked.Groups)
	slices.Sort(byLibrary.Groups)
	if err != nil || asked.UID != byLibrary.UID || asked.GID != byLibrary.GID || !slices.Equal(asked.Groups, byLibrary.Groups) {
		t.Errorf("getent and id: %+v, %v; the library says %+v", asked, err, byLibrary)
	}
}

func TestWhoIsNobodyHere(t *testing.T) {
	for _, name := range []string{"", "0", "1000", "-u", "+x", "no-such-user-here", "a b", "a:b", "../x", "a\nroot", strings.Repeat("x", 300)} {
		if a, err := Find(t.Context(), name); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q is %+v, %v", name, a, err)
		}
		if a, err := ask(t.Context(), "no-such-user-here"); !errors.Is(err, ErrUnknown) && !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("getent: %+v, %v", a, err)
		}
	}
}

func TestRules(t *testing.T) {
	account := func(name string, uid, gid uint32) *Account { return &Account{Name: name, UID: uid, GID: gid} }
	for _, test := range []struct {
		who   string
		rules Rules
		a     *Account
		want  string
	}{
		{"a user", Rules{}, account("ann", 1000, 1000), ""},
		{"root", Rules{}, account("root", 0, 0), "is banned"},
		{"another name of root", Rules{}, account("toor", 0, 0), "no container runs as root"},
		{"root, allowed", Rules{Banned: []string{}, Allowed: []string{"root"}}, account("root", 0, 0), "no container runs as root"},
		{"a user in the group of root", Rules{}, account("ann", 1000, 0), "no container runs as root"},
		{"hdfs", Rules{}, account("hdfs", 1001, 1001), "user hdfs is banned from containers"},
		{"a daemon", Rules{}, account("www-data", 33, 33), "user id 33 on this node, and containers run from 1000 on"},
		{"a daemon that is allowed", Rules{Allowed: []string{"www-data"}}, account("www-data", 33, 33), ""},
		{"a user below a higher bound", Rules{MinUID: 5000}, account("ann", 1000, 1000), "from 5000 on"},
		{"a user who is banned", Rules{Banned: []string{"eve"}}, account("eve", 1000, 1000), "is banned"},
		{"an unbanned one", Rules{Banned: []string{}}, account("hdfs", 1001, 1001), ""},
	} {
		err := test.rules.Check(test.a)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.who, err, test.want)
		}
	}
}
