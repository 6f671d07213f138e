"""Shards: large files with many samples in them. tar as WebDataset writes it, TFRecord, and lines."""
import collections
import concurrent.futures
import io
import json
import posixpath
import struct
import tarfile

from hops import _order, data

# A shard is read in pieces of this size, one of them ahead.
PIECE = 8 << 20


class _Range(io.RawIOBase):
    """A file of the filesystem from an offset on, read ahead by one piece."""

    def __init__(self, fs, path, size, at, pool):
        self.fs, self.path, self.size, self.pool = fs, path, size, pool
        self._piece, self._end = memoryview(b""), at  # what is left of a piece, and where that ends in the file
        self._ahead = self._ask(at)

    def readable(self):
        return True

    def _ask(self, at):
        return self.pool.submit(self.fs.read, self.path, at, min(PIECE, self.size - at)) if at < self.size else None

    def readinto(self, b):
        if not self._piece and self._ahead is not None:
            piece = self._ahead.result()
            if not piece:
                raise OSError("it had %d bytes and ends at %d: it was changed while it was read" % (self.size, self._end))
            self._piece, self._end = memoryview(piece), self._end + len(piece)
            self._ahead = self._ask(self._end)
        n = min(len(b), len(self._piece))
        b[:n] = self._piece[:n]
        self._piece = self._piece[n:]
        return n


def _lines(file, at):
    """(offset behind it, line) of each line from an offset on."""
    for line in file:
        at += len(line)
        yield at, line[:-1] if line.endswith(b"\n") else line


def _crc_table():
    out = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        out.append(i)
    return out


_CRC32C = _crc_table()


def masked_crc32c(octets):
    """The CRC-32C of a few bytes, rotated and moved as TFRecord files have it."""
    crc = 0xFFFFFFFF
    for octet in octets:
        crc = crc >> 8 ^ _CRC32C[(crc ^ octet) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# What one record may be at most: a length beyond that is a damaged file.
_RECORD = 1 << 30


def _tfrecords(file, at):
    """(offset behind it, record) of each record. The CRC of the length is checked, that of the content not: the datanodes have
    compared it with their own."""
    while True:
        head = file.read(12)
        if not head:
            return
        if len(head) < 12:
            raise OSError("the file ends in the head of a record at %d" % at)
        length, crc = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != crc or length > _RECORD:
            raise OSError("no TFRecord begins at %d: the file is damaged, or of another format" % at)
        body = file.read(length + 4)
        if len(body) < length + 4:
            raise OSError("the file ends in a record of %d bytes at %d" % (length, at))
        at += 16 + length
        yield at, body[:length]


def _tars(file, at):
    """(offset behind it, sample) of each sample: members with the same name up to the first dot of the base name, one after the
    other, as {"__key__": name, extension: bytes}."""
    begin, archive = at, tarfile.open(fileobj=file, mode="r|", bufsize=1 << 20)
    sample, end = None, at
    for member in archive:
        archive.members = []  # it keeps all of them otherwise
        if not member.isfile():
            continue
        directory, base = posixpath.split(member.name)
        stem, _, extension = base.partition(".")
        key = posixpath.join(directory, stem)
        if sample is not None and sample["__key__"] != key:
            yield end, sample
            sample = None
        if sample is None:
            sample = {"__key__": key}
        sample[extension] = archive.extractfile(member).read()
        end = begin + member.offset_data + (member.size + 511) // 512 * 512
    if sample is not None:
        yield end, sample


FORMATS = {"tar": _tars, "tfrecord": _tfrecords, "lines": _lines}
_SUFFIXES = {".tar": "tar", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".jsonl": "lines", ".txt": "lines", ".csv": "lines", ".ndjson": "lines"}


class Shards(data._Source):
    """Files with many samples each. Ranks get whole shards. paths and the rest are as of Dataset; format is tar, tfrecord or lines, by
    default what the names end in."""

    def __init__(self, paths, format=None, recursive=True, suffixes=None, fs=None):
        self.files = data.Dataset(paths, recursive=recursive, suffixes=suffixes, fs=fs)
        self.fs = self.files.fs
        if format is None:
            found = {_SUFFIXES.get(posixpath.splitext(n)[1]) for n in self.files.names()}
            if len(found) != 1 or None in found:
                raise ValueError("the names of the shards do not say what they are: give format=, one of %s" % ", ".join(sorted(FORMATS)))
            format, = found
        if format not in FORMATS:
            raise ValueError("format is %r: it is one of %s" % (format, ", ".join(sorted(FORMATS))))
        self.format = format

    def __len__(self):
        """How many shards there are."""
        return len(self.files)

    def __repr__(self):
        return "<%d shards of %s>" % (len(self), self.format)

    def fingerprint(self):
        return self.files.fingerprint()

    def epoch(self, seed=0, rank=None, world=None, batch=None, shuffle=True, decode=None, share="all", drop_last=False, buffer=1000, interleave=4):
        """One pass: samples as their format has them (a dict, or bytes), or decode(sample) of each, or lists of batch of them.

        The order of the shards follows from the seed. interleave of them are read at a time, a sample of each in turn, and of each buffer
        samples that come so the order is shuffled. share is about shards: "pad" reads some twice."""
        return _ShardsEpoch(self, seed, rank, world, share, batch, drop_last, shuffle, decode, buffer, interleave)

    def _signature(self, tf, options):
        if self.format == "tar" or options.get("decode") or options.get("batch"):
            return super()._signature(tf, options)
        return tf.TensorSpec((), tf.string)


class _ShardsEpoch(data.Epoch):
    def __init__(self, source, seed, rank, world, share, batch, drop_last, shuffle, decode, buffer, interleave):
        super().__init__(source, seed, rank, world, share, batch, drop_last)
        if buffer < 1 or interleave < 1:
            raise ValueError("buffer is %r and interleave %r: both are 1 or more" % (buffer, interleave))
        self.shuffle, self.decode, self.buffer, self.interleave = shuffle, decode, buffer, interleave
        self._order = _order.Permutation(len(source), seed) if shuffle else range(len(source))
        # Where the window that is being given out began: the open shards in the order of their turns, as (k-th of this rank, offset), the
        # next shard, the number of the window; and how many samples of it were given out.
        self._window = {"open": [], "next": 0, "number": 0}
        self._given = 0

    def _more(self):
        return {"window": self._window, "given": self._given, "buffer": self.buffer, "interleave": self.interleave}

    def _go(self, more):
        for key in ("buffer", "interleave"):
            if more[key] != getattr(self, key):
                raise ValueError("the state is of an epoch with %s=%d, and this one has %d" % (key, more[key], getattr(self, key)))
        self._window, self._given = json.loads(json.dumps(more["window"])), more["given"]

    def _regroup(self, was, state):
        raise ValueError("the state is of %d ranks, and shards cannot be shared anew by %d in the middle of an epoch" % (was.world, self.world))

    def _run(self):
        pool = concurrent.futures.ThreadPoolExecutor(self.interleave, thread_name_prefix="hops-data")
        try:
            yield from self._samples(pool)
        finally:
            pool.shutdown(wait=False)

    def _open(self, k, at, pool):
        path = self.source.files.name(self._order[self._share.position(k)])
        size = self.source.fs.status(path)["length"]
        try:
            if at >= size:
                return path, iter(())
            return path, FORMATS[self.source.format](io.BufferedReader(_Range(self.source.fs, path, size, at, pool), 1 << 20), at)
        except tarfile.TarError as e:
            raise OSError("%s is no tar file: %s" % (path, e)) from e

    def _samples(self, pool):
        w = self._window
        shards = collections.deque([k, at] + list(self._open(k, at, pool)) for k, at in w["open"])  # [k, offset, path, samples]
        following, number, skip = w["next"], w["number"], self._given
        while True:
            window = []
            while len(window) < self.buffer:
                while len(shards) < self.interleave and following < len(self._share):
                    shards.append([following, 0] + list(self._open(following, 0, pool)))
                    following += 1
                if not shards:
                    break
                shard = shards[0]
                try:
                    shard[1], sample = next(shard[3])
                except StopIteration:
                    shards.popleft()
                    continue
                except (OSError, tarfile.TarError) as e:
                    raise OSError("%s: %s" % (shard[2], e)) from e
                window.append(sample)
                shards.rotate(-1)
            if not window:
                return
            order = _order.Permutation(len(window), "%s/%d/%d" % (self.seed, self.rank, number)) if self.shuffle else range(len(window))
            for i in range(skip, len(window)):
                sample = window[order[i]]
                self._given = i + 1
                yield self.decode(sample) if self.decode else sample
            skip, number = 0, number + 1
            self._window = {"open": [[s[0], s[1]] for s in shards], "next": following, "number": number}
            self._given = 0
