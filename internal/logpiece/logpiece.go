// Package logpiece names the pieces in which the filesystem has a log file that is rolled: the first has the file's own name, and each
// other one says at which byte of the file it begins, so that pieces that are missing are seen as such and names are in order.
package logpiece

import (
	"fmt"
	"strconv"
	"strings"
)

// digits are as many as a file of a pebibyte needs.
const digits = 16

// Name is that of the piece of a file which begins at a byte.
func Name(file string, begin int64) string {
	if begin == 0 {
		return file
	}
	return fmt.Sprintf("%s@%0*d", file, digits, begin)
}

// Parse tells of which file a name is a piece, and where it begins. A name that is none of a later piece is that of a whole file or of a
// first piece.
func Parse(name string) (file string, begin int64) {
	file, text, ok := cutLast(name)
	if !ok || len(text) != digits || strings.Trim(text, "0123456789") != "" {
		return name, 0
	}
	begin, err := strconv.ParseInt(text, 10, 64)
	if err != nil || begin == 0 || file == "" {
		return name, 0
	}
	return file, begin
}

func cutLast(name string) (before, after string, ok bool) {
	i := strings.LastIndexByte(name, '@')
	if i < 0 {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}
