package logpiece

import "testing"

func TestNames(t *testing.T) {
	for name, want := range map[string]struct {
		file  string
		begin int64
	}{
		"stdout": {"stdout", 0}, "stdout@0000000000001024": {"stdout", 1024}, "a@b@0000000000000001": {"a@b", 1},
	} {
		file, begin := Parse(name)
		if file != want.file || begin != want.begin || Name(file, begin) != name {
			t.Errorf("%s: %s %d", name, file, begin)
		}
	}
	for _, name := range []string{"stdout@1024", "stdout@0000000000000000", "stdout@000000000000102a", "@0000000000001024", "stdout@-000000000001024", "x@", ""} {
		if file, begin := Parse(name); file != name || begin != 0 {
			t.Errorf("%s: %s %d", name, file, begin)
		}
	}
	if Name("stdout", 99) >= Name("stdout", 1000) {
		t.Error("names are not in order")
	}
}
