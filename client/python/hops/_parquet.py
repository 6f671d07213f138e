"""Parquet for training, by pyarrow: ranks share row groups, and read only the columns that they need."""
import concurrent.futures
import io
import zlib

from hops import _order, data

# A column is read in pieces of at least this size.
READ = 1 << 20


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("parquet() needs the package pyarrow, which is not installed") from None
    return pyarrow


class File(io.RawIOBase):
    """A file of the filesystem for who seeks in it, as pyarrow does. Reads of less than READ bytes bring what follows along."""

    def __init__(self, fs, path, size=None):
        self.fs, self.path = fs, path
        self._size = fs.status(path)["length"] if size is None else size
        self._at, self._from, self._kept = 0, 0, b""

    def readable(self):
        return True

    def seekable(self):
        return True

    def size(self):
        return self._size

    def tell(self):
        return self._at

    def seek(self, offset, whence=0):
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def read(self, n=-1):
        left = max(0, self._size - self._at)
        n = left if n is None or n < 0 else min(n, left)
        if not n:
            return b""
        begin = self._at - self._from
        if not 0 <= begin <= len(self._kept) - n:
            # What is read at the end of a file is its footer: from the front, too, then.
            start = self._at if n >= READ or left >= READ else max(0, self._size - READ)
            self._kept, self._from = self.fs.read(self.path, start, min(max(n + self._at - start, READ), self._size - start)), start
            begin = self._at - start
            if len(self._kept) < begin + n:
                raise OSError("%s had %d bytes and ends at %d: it was changed while it was read" % (self.path, self._size, start + len(self._kept)))
        self._at += n
        return self._kept[begin:begin + n]

    def readinto(self, b):
        found = self.read(len(b))
        b[:len(found)] = found
        return len(found)


class Parquet(data._Source):
    """Parquet files, of which the footers are read at once. len() is the number of row groups, rows that of rows. schema is the
    first file's; the others have to have the same columns."""

    def __init__(self, paths, columns=None, recursive=True, suffixes=(".parquet",), fs=None):
        arrow = _pyarrow()
        self.files = data.Dataset(paths, recursive=recursive, suffixes=suffixes, fs=fs)
        self.fs, self.columns = self.files.fs, list(columns) if columns is not None else None
        self._groups = []  # (number of the file, row group)
        self.rows, self.schema = 0, None
        names = self.files.names()
        with concurrent.futures.ThreadPoolExecutor(data.THREADS, thread_name_prefix="hops-data") as pool:
            footers = list(pool.map(lambda p: self._footer(arrow, p), names))
        for i, (size, meta) in enumerate(footers):
            schema = meta.schema.to_arrow_schema()
            if self.schema is None:
                self.schema = schema
            missing = [c for c in self.columns or self.schema.names if c not in schema.names]
            if missing:
                raise ValueError("%s has no column %s: it has %s" % (names[i], ", ".join(missing), ", ".join(schema.names)))
            self._groups += [(i, g) for g in range(meta.num_row_groups)]
            self.rows += meta.num_rows
        self._footers = footers

    def _footer(self, arrow, path):
        file = File(self.fs, path)
        try:
            return file.size(), arrow.parquet.read_metadata(file)
        except arrow.ArrowInvalid as e:
            raise OSError("%s is no Parquet file: %s" % (path, e)) from e

    def __len__(self):
        return len(self._groups)

    def __repr__(self):
        return "<%d files of Parquet, %d row groups, %d rows>" % (len(self.files), len(self), self.rows)

    def __getstate__(self):
        out = dict(self.__dict__)
        del out["_footers"]
        return out

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._footers = None

    def fingerprint(self):
        return zlib.crc32(repr((self.files.fingerprint(), self.rows, len(self))).encode())

    def epoch(self, seed=0, rank=None, world=None, batch_size=None, shuffle_row_groups=True, shuffle_rows=False, decode=None, share="all", ahead=2):
        """One pass: a pyarrow.RecordBatch of at most batch_size rows after the other (None: whole row groups), or decode(batch) of each.
        Batches end at row groups.

        shuffle_row_groups: their order follows from the seed. shuffle_rows: that of the rows within each, too. ahead: how many row groups
        are read ahead. share is about row groups: "pad" reads some twice."""
        return _ParquetEpoch(self, seed, rank, world, share, batch_size, shuffle_row_groups, shuffle_rows, decode, ahead)

    def _read(self, group):
        i, g = group
        arrow = _pyarrow()
        path = self.files.name(i)
        size, meta = self._footers[i] if self._footers is not None else (None, None)
        file = arrow.parquet.ParquetFile(File(self.fs, path, size), metadata=meta)
        return file.read_row_group(g, columns=self.columns)


class _ParquetEpoch(data.Epoch):
    def __init__(self, source, seed, rank, world, share, batch_size, shuffle, shuffle_rows, decode, ahead):
        super().__init__(source, seed, rank, world, share, None, False)
        if batch_size is not None and batch_size < 1:
            raise ValueError("batch_size is %r: it is the number of rows in a batch, 1 or more" % (batch_size,))
        self.batch_size, self.shuffle_rows, self.decode, self.ahead = batch_size, shuffle_rows, decode, max(1, ahead)
        self._order = _order.Permutation(len(source), seed) if shuffle else range(len(source))
        self._done, self._rows = 0, 0  # whole row groups, and rows of the next one

    def _more(self):
        return {"rows": self._rows, "done": self._done, "shuffle_rows": self.shuffle_rows}

    def _go(self, more):
        if more["shuffle_rows"] != self.shuffle_rows:
            raise ValueError("the state is of an epoch with shuffle_rows=%r" % more["shuffle_rows"])
        self._rows, self._done = more["rows"], more["done"]

    def _regroup(self, was, state):
        more = state["more"]
        if more["rows"]:
            raise ValueError("the state is of %d ranks in the middle of a row group, and cannot be shared anew by %d" % (was.world, self.world))
        self._share = was.after(more["done"], self.rank, self.world)
        self._taken = self._rows = self._done = 0

    def _run(self):
        numbers = [self._order[self._share.position(k)] for k in range(self._done, len(self._share))]
        tasks = ((n, 1) for n in numbers)
        read = data._ahead(tasks, lambda n: (n, self.source._read(self.source._groups[n])), self.ahead, self.ahead)
        for number, table in read:
            if self.shuffle_rows:
                order = _order.Permutation(table.num_rows, "%s/%d" % (self.seed, number))
                table = table.take([order[i] for i in range(table.num_rows)])
            start, total = self._rows, table.num_rows
            table = table.combine_chunks()
            while start < total:
                n = min(self.batch_size or total, total - start)
                part = table.slice(start, n).combine_chunks().to_batches()[0]
                start += n
                self._rows = start
                if start == total:
                    self._rows, self._done = 0, self._done + 1
                yield self.decode(part) if self.decode else part
            if not total:
                self._done += 1
