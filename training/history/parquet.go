package history

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
)

// WriteParquet writes the table as an Apache Parquet file (format version 1): one row group for each 50,000 rows or 64 MiB of text, plain encoding,
// no compression, every column optional. A column of integers is INT64, of numbers DOUBLE, of truth values BOOLEAN; a
// mixed one and one without values is text, BYTE_ARRAY with the type UTF8.
//
// It is written here and not by a library because such a file needs little: the metadata in Thrift's compact protocol and
// one page per column (https://github.com/apache/parquet-format). Tables of other shapes do not occur.
func (t *Table) WriteParquet(w io.Writer) error {
	kinds := make([]parquetType, len(t.Columns))
	for i := range t.Columns {
		kinds[i] = t.kind(i)
	}
	out := &counted{w: w}
	out.write([]byte(parquetMagic))
	var groups [][]chunk
	for from := 0; from < len(t.Rows); {
		rows := t.Rows[from:t.groupEnd(from)]
		from += len(rows)
		var group []chunk
		for i, k := range kinds {
			page := plainPage(rows, i, k)
			header := pageHeader(len(page), len(rows))
			group = append(group, chunk{column: i, rows: len(rows), at: out.n, size: int64(len(header) + len(page))})
			out.write(header)
			out.write(page)
		}
		groups = append(groups, group)
	}
	footer := t.footer(kinds, groups)
	out.write(footer)
	out.write(binary.LittleEndian.AppendUint32(nil, uint32(len(footer))))
	out.write([]byte(parquetMagic))
	return out.err
}

const (
	parquetMagic = "PAR1"
	rowGroup     = 50_000
	groupBytes   = 64 << 20 // of text; a page has less than 2 GiB
)

// groupEnd is where the row group ends that begins at a row.
func (t *Table) groupEnd(from int) int {
	size, to := 0, from
	for ; to < min(from+rowGroup, len(t.Rows)) && (size < groupBytes || to == from); to++ {
		for _, v := range t.Rows[to] {
			if s, ok := v.(string); ok {
				size += len(s)
			}
		}
	}
	return to
}

// parquetType is Type of parquet.thrift.
type parquetType int32

const (
	parquetBoolean   parquetType = 0
	parquetInt64     parquetType = 2
	parquetDouble    parquetType = 5
	parquetByteArray parquetType = 6
)

// chunk is a column of a row group in the file.
type chunk struct {
	column, rows int
	at, size     int64
}

// counted is a writer that knows how far it is and keeps its first error.
type counted struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counted) write(b []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
		c.n += int64(len(b))
	}
}

// kind is the type that takes all values of a column: integers beside numbers are numbers, if they lose nothing.
func (t *Table) kind(column int) parquetType {
	var ints, floats, bools, others int
	exact := true
	for _, row := range t.Rows {
		switch v := row[column].(type) {
		case nil:
		case int64:
			ints++
			exact = exact && v >= -1<<53 && v <= 1<<53
		case float64:
			floats++
		case bool:
			bools++
		default:
			others++
		}
	}
	switch {
	case others > 0 || bools > 0 && ints+floats > 0:
		return parquetByteArray
	case bools > 0:
		return parquetBoolean
	case floats > 0 && exact:
		return parquetDouble
	case floats > 0:
		return parquetByteArray
	case ints > 0:
		return parquetInt64
	}
	return parquetByteArray
}

// plainPage is the content of a data page: definition levels (1: there is a value) in the RLE/bit-packed hybrid, then the
// values that there are.
func plainPage(rows [][]any, column int, k parquetType) []byte {
	var levels, values bytes.Buffer
	for i := 0; i < len(rows); {
		defined := rows[i][column] != nil
		j := i
		for j < len(rows) && (rows[j][column] != nil) == defined {
			j++
		}
		levels.Write(binary.AppendUvarint(nil, uint64(j-i)<<1)) // a run of the RLE kind
		if defined {
			levels.WriteByte(1)
		} else {
			levels.WriteByte(0)
		}
		i = j
	}
	bits, n := byte(0), 0
	for _, row := range rows {
		v := row[column]
		if v == nil {
			continue
		}
		switch k {
		case parquetInt64:
			values.Write(binary.LittleEndian.AppendUint64(nil, uint64(v.(int64))))
		case parquetDouble:
			f, ok := v.(float64)
			if !ok {
				f = float64(v.(int64))
			}
			values.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(f)))
		case parquetBoolean:
			if v.(bool) {
				bits |= 1 << n
			}
			if n++; n == 8 {
				values.WriteByte(bits)
				bits, n = 0, 0
			}
		default:
			s := cell(v)
			values.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(s))))
			values.WriteString(s)
		}
	}
	if n > 0 {
		values.WriteByte(bits)
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(levels.Len()))
	return append(append(out, levels.Bytes()...), values.Bytes()...)
}

func pageHeader(size, rows int) []byte {
	var c compact
	c.i32(1, 0) // DATA_PAGE
	c.i32(2, int32(size))
	c.i32(3, int32(size)) // compressed: not
	c.begin(5)            // DataPageHeader
	c.i32(1, int32(rows))
	c.i32(2, 0) // PLAIN
	c.i32(3, 3) // definition levels: RLE
	c.i32(4, 3) // repetition levels: RLE
	c.end()
	c.stop()
	return c.Bytes()
}

// footer is FileMetaData.
func (t *Table) footer(kinds []parquetType, groups [][]chunk) []byte {
	var c compact
	c.i32(1, 1) // version
	c.list(2, compactStruct, len(kinds)+1)
	c.open() // the root
	c.text(4, "schema")
	c.i32(5, int32(len(kinds)))
	c.close()
	for i, k := range kinds {
		c.open()
		c.i32(1, int32(k))
		c.i32(3, 1) // OPTIONAL
		c.text(4, t.Columns[i])
		if k == parquetByteArray {
			c.i32(6, 0) // UTF8
		}
		c.close()
	}
	c.i64(3, int64(len(t.Rows)))
	c.list(4, compactStruct, len(groups))
	for _, group := range groups {
		c.open()
		var total int64
		c.list(1, compactStruct, len(group))
		for _, k := range group {
			total += k.size
			c.open() // ColumnChunk
			c.i64(2, k.at)
			c.begin(3) // ColumnMetaData
			c.i32(1, int32(kinds[k.column]))
			c.list(2, compactI32, 2)
			c.element(0) // PLAIN
			c.element(3) // RLE
			c.list(3, compactBinary, 1)
			c.string(t.Columns[k.column])
			c.i32(4, 0) // UNCOMPRESSED
			c.i64(5, int64(k.rows))
			c.i64(6, k.size)
			c.i64(7, k.size)
			c.i64(9, k.at)
			c.end()
			c.close()
		}
		c.i64(2, total)
		c.i64(3, int64(group[0].rows))
		c.close()
	}
	c.text(6, "hops")
	c.stop()
	return c.Bytes()
}

// compact writes Thrift's compact protocol: fields of a struct by the difference of their numbers, integers as zigzag
// varints.
type compact struct {
	bytes.Buffer
	last  int16
	outer []int16
}

// Types of the compact protocol.
const (
	compactI32    = 5
	compactI64    = 6
	compactBinary = 8
	compactList   = 9
	compactStruct = 12
)

func (c *compact) field(id int16, kind byte) {
	if delta := id - c.last; delta > 0 && delta <= 15 {
		c.WriteByte(byte(delta)<<4 | kind)
	} else {
		c.WriteByte(kind)
		c.element(int64(id))
	}
	c.last = id
}

func (c *compact) element(v int64) { c.Write(binary.AppendVarint(nil, v)) }

func (c *compact) i32(id int16, v int32) {
	c.field(id, compactI32)
	c.element(int64(v))
}

func (c *compact) i64(id int16, v int64) {
	c.field(id, compactI64)
	c.element(v)
}

func (c *compact) string(s string) {
	c.Write(binary.AppendUvarint(nil, uint64(len(s))))
	c.WriteString(s)
}

func (c *compact) text(id int16, s string) {
	c.field(id, compactBinary)
	c.string(s)
}

func (c *compact) list(id int16, kind byte, n int) {
	c.field(id, compactList)
	if n < 15 {
		c.WriteByte(byte(n)<<4 | kind)
		return
	}
	c.WriteByte(0xf0 | kind)
	c.Write(binary.AppendUvarint(nil, uint64(n)))
}

// open and close are a struct that is an element of a list; begin and end one that is a field.
func (c *compact) open() {
	c.outer = append(c.outer, c.last)
	c.last = 0
}

func (c *compact) close() {
	c.stop()
	c.last = c.outer[len(c.outer)-1]
	c.outer = c.outer[:len(c.outer)-1]
}

func (c *compact) begin(id int16) {
	c.field(id, compactStruct)
	c.open()
}

func (c *compact) end() { c.close() }

func (c *compact) stop() { c.WriteByte(0) }
