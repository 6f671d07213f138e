package simulator

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxFile bounds a file of jobs or nodes.
const maxFile = int64(4) << 30

// lines reads and remembers where lines begin, so that places in JSON can be told by line.
type lines struct {
	r      io.Reader
	read   int64
	breaks []int64
}

func (l *lines) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	for i := 0; ; {
		k := bytes.IndexByte(b[i:n], '\n')
		if k < 0 {
			break
		}
		i += k + 1
		l.breaks = append(l.breaks, l.read+int64(i))
	}
	if l.read += int64(n); l.read > maxFile {
		return n, fmt.Errorf("the file is longer than %d bytes", maxFile)
	}
	return n, err
}

// line is that of an offset, from 1.
func (l *lines) line(offset int64) int {
	k, _ := slices.BinarySearch(l.breaks, offset+1)
	return k + 1
}

// values reads the JSON values of a file, one after the other or in one array, and hands each over with the line it begins in. What
// take says is wrong is noted.
func values(name string, r io.Reader, take func(line int, value json.RawMessage) error) error {
	l := &lines{r: r}
	d := json.NewDecoder(l)
	wrong := &problems{file: name}
	buffered := bufio.NewReader(r)
	l.r = buffered
	array := false
	for {
		b, err := buffered.Peek(1)
		if err != nil {
			break
		}
		if !strings.ContainsRune(" \t\r\n\ufeff", rune(b[0])) {
			array = b[0] == '['
			break
		}
		if b[0] == '\n' {
			l.breaks = append(l.breaks, l.read+1)
		}
		l.read++
		_, _ = buffered.Discard(1)
	}
	skipped := l.read // the decoder counts from here
	if array {
		if _, err := d.Token(); err != nil {
			wrong.add(1, err)
			return wrong.err()
		}
	}
	for {
		if array && !d.More() {
			if _, err := d.Token(); err != nil {
				wrong.add(l.line(skipped+d.InputOffset()), tidy(err))
			}
			break
		}
		var v json.RawMessage
		err := d.Decode(&v)
		if errors.Is(err, io.EOF) && !array {
			break
		}
		end := skipped + d.InputOffset()
		if err != nil { // nothing can be read after it
			place := l.read // the file ends
			if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
				place = skipped + syntax.Offset
			}
			wrong.add(l.line(max(place-1, 0)), tidy(err))
			break
		}
		if err := take(l.line(end-int64(len(v))), v); err != nil && !wrong.add(l.line(end-int64(len(v))), err) {
			break
		}
	}
	return wrong.err()
}

// tidy says in plain words where JSON ends early.
func tidy(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("the file ends within a value")
	}
	return err
}

// object decodes one JSON object whose numbers may be written as text, as Hadoop's readers take them.
func object(v json.RawMessage) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(v))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil || m == nil {
		return nil, errors.New("an object is needed")
	}
	return m, nil
}

// fields takes values out of an object and notes what is wrong with them.
type fields struct {
	m    map[string]any
	errs []error
}

func (f *fields) text(key string) string {
	v, ok := f.m[key]
	delete(f.m, key)
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	if ok && v != nil {
		f.errs = append(f.errs, fmt.Errorf("%s is no text", key))
	}
	return ""
}

// number is def when the key is not there.
func (f *fields) number(key string, def int64) int64 {
	if f.m[key] == nil {
		delete(f.m, key)
		return def
	}
	text := f.text(key)
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		f.errs = append(f.errs, fmt.Errorf("%s: %.40q is not a whole number", key, text))
	}
	return n
}

func (f *fields) list(key string) []any {
	v := f.m[key]
	delete(f.m, key)
	out, ok := v.([]any)
	if !ok && v != nil {
		f.errs = append(f.errs, fmt.Errorf("%s is no list", key))
	}
	return out
}

func (f *fields) ignore(keys ...string) {
	for _, k := range keys {
		delete(f.m, k)
	}
}

// shape reads amounts under the names that resources have in YARN, with a prefix.
func (f *fields) shape(prefix string, memoryMiB int64, vcores int) Shape {
	memory := f.number(prefix+"memory-mb", memoryMiB)
	s := Shape{VCores: int(f.number(prefix+"vcores", int64(vcores))), GPUs: int(f.number(prefix+"yarn.io/gpu", 0))}
	if memory < 0 || memory > maxAmount>>20 {
		f.errs = append(f.errs, fmt.Errorf("%smemory-mb: %d is no amount of memory", prefix, memory))
		return s
	}
	s.Memory = memory << 20
	return s
}

// err is all that was wrong, and what nobody took out.
func (f *fields) err() error {
	for _, k := range sortedKeys(f.m) {
		f.errs = append(f.errs, fmt.Errorf("%.80q is not known", k))
	}
	return errors.Join(f.errs...)
}
