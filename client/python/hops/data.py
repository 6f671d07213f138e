"""Data for training, read at the rate the wire allows: shuffled epochs over many small files, over shards, and over Parquet.

    from hops import data
    pictures = data.Dataset("/data/train", suffixes=(".jpg",))
    for epoch in range(10):
        for name, content in pictures.epoch(seed=epoch):
            ...

Thousands of files come with one request, ahead of their use. The order is a function of the seed; each file comes exactly once over
all ranks; state() of an epoch is a small JSON value from which restore() goes on exactly where it was, whatever was read ahead.
torch_dataset() and tf_dataset() are the same for PyTorch's DataLoader and tf.data. shards() reads tar (as WebDataset writes them),
TFRecord and line files, parquet() row groups by pyarrow.
"""
import array
import collections
import concurrent.futures
import os
import posixpath
import re
import secrets
import struct
import zlib

from hops import _many, _order, hdfs

# One request is about this much, in files and bytes.
FILES, BYTES = 2048, 8 << 20
# MEMORY is how many bytes are read ahead at most, and THREADS by how many threads.
MEMORY, THREADS = 256 << 20, 4
# What a file is taken for whose length is not known, because it was given by its name.
_UNKNOWN = 64 << 10
# A file with the list of a directory, if one is asked for.
INDEX = ".hops-index"


def _place(rank, world):
    """(rank, world): as given, else of hops.dist, else of the environment, else 0 of 1."""
    if rank is None and world is None:
        try:
            from hops import dist
            here = dist.context()
            rank, world = here.rank, here.world
        except ImportError:
            env = os.environ
            pair = ("RANK", "WORLD_SIZE") if "RANK" in env and "WORLD_SIZE" in env else ("HOPS_RANK", "HOPS_WORLD_SIZE")
            rank, world = env.get(pair[0], "0"), env.get(pair[1], "1")
            if not rank.isdigit() or not world.isdigit():
                raise ValueError("%s=%r and %s=%r are not numbers" % (pair[0], rank, pair[1], world))
            rank, world = int(rank), int(world)
    if rank is None or world is None or not 0 <= rank < world:
        raise ValueError("rank %r of world %r: give both, with 0 <= rank < world, or none" % (rank, world))
    return rank, world


class Share:
    """The part of a rank in positions 0 … count-1: start + rank, start + rank + world, …

    share is what happens to the last count % world of them: "all" (each comes once, ranks differ by one in length), "drop" (they
    are left out) or "pad" (the first ones come again, so that all ranks have as many)."""

    def __init__(self, count, rank, world, share="all", start=0):
        if share not in ("all", "drop", "pad"):
            raise ValueError('share is %r: it is "all", "drop" or "pad"' % (share,))
        self.count, self.rank, self.world, self.share, self.start = count, rank, world, share, start
        left = max(0, count - start)
        if share == "all":
            self.length = max(0, (left - rank + world - 1) // world)
        elif share == "drop":
            self.length = left // world
        else:
            self.length = (left + world - 1) // world

    def __len__(self):
        return self.length

    def position(self, k):
        return (self.start + self.rank + k * self.world) % self.count

    def after(self, taken, rank, world):
        """The part of a rank of another number of ranks, when each has taken as many as this one."""
        return Share(self.count, rank, world, self.share, min(self.count, self.start + taken * self.world))


class Epoch:
    """One pass over a source. An iterator, and a context manager that stops reading ahead when it is left early."""

    def __init__(self, source, seed, rank, world, share, batch, drop_last):
        rank, world = _place(rank, world)
        if batch is not None and batch < 1:
            raise ValueError("batch is %r: it is the number of samples in a batch, 1 or more" % (batch,))
        self.source, self.seed, self.batch, self.drop_last = source, seed, batch, drop_last
        self._share = Share(len(source), rank, world, share)
        self._taken = 0
        self._iterator = None

    @property
    def rank(self):
        return self._share.rank

    @property
    def world(self):
        return self._share.world

    def __iter__(self):
        return self

    def __next__(self):
        if self._iterator is None:
            self._iterator = self._run()
        if self.batch is None:
            return self._one()
        out = []
        try:
            while len(out) < self.batch:
                out.append(self._one())
        except StopIteration:
            if not out or self.drop_last:
                raise
        return out

    def _one(self):
        item = next(self._iterator)
        self._taken += 1
        return item

    def close(self):
        """Stops reading ahead. The state stays."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def state(self):
        """Where this epoch is, as a value for JSON."""
        s = self._share
        return {"source": self.source.fingerprint(), "seed": self.seed, "rank": s.rank, "world": s.world, "share": s.share, "start": s.start,
                "taken": self._taken, "more": self._more()}

    def restore(self, state):
        """Go on where an epoch of the same source and seed was. Another number of ranks is fine where all saved their state after
        as many samples. Returns itself."""
        self.close()
        s = self._share
        for key, mine in (("source", self.source.fingerprint()), ("seed", self.seed), ("share", s.share)):
            if state[key] != mine:
                raise ValueError("the state is of an epoch with %s %r, and this one has %r%s" % (
                    key, state[key], mine, ": the files are not the same" if key == "source" else ""))
        was = Share(s.count, state["rank"], state["world"], s.share, state["start"])
        if (state["rank"], state["world"]) == (s.rank, s.world):
            self._share, self._taken = was, state["taken"]
            self._go(state["more"])
        elif state["world"] == s.world:
            raise ValueError("the state is of rank %d, and this is rank %d of %d" % (state["rank"], s.rank, s.world))
        else:
            self._regroup(was, state)
        return self

    # -- what a source's epoch does its own way

    def _run(self):
        raise NotImplementedError

    def _more(self):
        return None

    def _go(self, more):
        pass

    def _regroup(self, was, state):
        self._share, self._taken = was.after(state["taken"], self._share.rank, self._share.world), 0


def _ahead(plan, work, memory, threads):
    """work(task) of each (task, bytes) of plan, in order, done ahead by threads while not more than memory bytes are under way."""
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="hops-data")
    under_way, size, plan = collections.deque(), 0, iter(plan)
    following = next(plan, None)
    try:
        while following is not None or under_way:
            while following is not None and (not under_way or size + following[1] <= memory and len(under_way) < 4 * threads):
                under_way.append((pool.submit(work, following[0]), following[1]))
                size += following[1]
                following = next(plan, None)
            future, n = under_way[0]
            yield future.result()
            under_way.popleft()
            size -= n
    finally:
        for future, _ in under_way:
            future.cancel()
        pool.shutdown(wait=False)


class _Source:
    """Something with epochs."""

    def fingerprint(self):
        """A number that changes when the source does."""
        raise NotImplementedError

    def __len__(self):
        raise NotImplementedError

    def epoch(self, seed=0, rank=None, world=None, **options):
        raise NotImplementedError

    def torch_dataset(self, seed=0, rank=None, world=None, **options):
        """An IterableDataset for torch.utils.data.DataLoader: its workers split the part of the rank. set_epoch(n) before each epoch
        changes the order. It has state_dict and load_state_dict (StatefulDataLoader of torchdata uses them)."""
        try:
            import torch.utils.data as torch_data
        except ImportError:
            raise ImportError("torch_dataset() needs the package torch, which is not installed") from None
        global _torch_class
        if _torch_class is None:
            _torch_class = type("TorchDataset", (_TorchDataset, torch_data.IterableDataset), {"__module__": __name__})
        place = _place(rank, world)
        return _torch_class(self, seed, *place, options)

    def tf_dataset(self, seed=0, rank=None, world=None, output_signature=None, **options):
        """A tf.data.Dataset. Without decode it has pairs of name and content, both tf.string; what decode returns needs an
        output_signature, as of Dataset.from_generator. Each time it is iterated the next seed is used: seed, "seed/1", …"""
        try:
            import tensorflow as tf
        except ImportError:
            raise ImportError("tf_dataset() needs the package tensorflow, which is not installed") from None
        if output_signature is None:
            output_signature = self._signature(tf, options)
        place = _place(rank, world)
        turn = [-1]

        def generate():
            turn[0] += 1
            with self.epoch(_seed(seed, turn[0]), *place, **options) as epoch:
                yield from epoch

        return tf.data.Dataset.from_generator(generate, output_signature=output_signature)

    def _signature(self, tf, options):
        raise ValueError("tf_dataset() of %s needs an output_signature: what its samples are like" % type(self).__name__)


def _seed(seed, epoch):
    return "%s/%d" % (seed, epoch) if epoch else seed


_torch_class = None


def _torch_dataset(source, seed, rank, world, options, epoch):
    out = source.torch_dataset(seed, rank, world, **options)
    out.set_epoch(epoch)
    return out


class _TorchDataset:
    def __init__(self, source, seed, rank, world, options):
        self.source, self.seed, self.rank, self.world, self.options = source, seed, rank, world, options
        self._epoch, self._now, self._state = 0, None, None

    def __reduce__(self):  # the class is made when it is first used
        return _torch_dataset, (self.source, self.seed, self.rank, self.world, self.options, self._epoch)

    def set_epoch(self, epoch):
        self._epoch, self._state = epoch, None

    def __iter__(self):
        import torch.utils.data as torch_data
        worker, rank, world = torch_data.get_worker_info(), self.rank, self.world
        if worker is not None:
            rank, world = rank + world * worker.id, world * worker.num_workers
        self._now = self.source.epoch(_seed(self.seed, self._epoch), rank, world, **self.options)
        if self._state is not None:
            self._now.restore(self._state)
            self._state = None
        return self._now

    def state_dict(self):
        return {"epoch": self._epoch, "state": self._now.state() if self._now is not None else self._state}

    def load_state_dict(self, state):
        self._epoch, self._state, self._now = state["epoch"], state["state"], None


# -- files


class Dataset(_Source):
    """Many files. paths is a directory, a pattern (*, ?, [], ** for any directories), a file, or a list of these.

    recursive: with the directories below. suffixes: only names that end in one of them. Names that begin with . or _ are left out.
    index: True keeps the list in the file .hops-index of the directory (or in the file of that path) and takes it from there the next
    time; remove that file when files were added. fs: another client than that of the acting user.

    The list is kept in memory at the size of the names and 16 bytes for each: 1,000,000 files take some 60 MB."""

    def __init__(self, paths, recursive=True, suffixes=None, index=None, fs=None):
        self.fs = fs or hdfs.get_fs()
        self.suffixes = (suffixes,) if isinstance(suffixes, str) else tuple(suffixes or ())
        self.recursive = recursive
        self._names, self._ends, self._lengths = bytearray(), array.array("Q"), array.array("Q")
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        given = [hdfs.abs_path(os.fspath(p)) for p in given]
        if index is True:
            if len(given) != 1 or re.search(r"[*?\[]", given[0]):
                raise ValueError("index=True is for one directory: name the file that is to keep the list of %s" % ", ".join(given))
            index = posixpath.join(given[0], INDEX)
        if index is None or not self._read_index(index, given):
            for path in given:
                self._add(path)
            if index is not None:
                self._write_index(index, given)
        self._names = bytes(self._names)
        self._crc = zlib.crc32(self._lengths.tobytes(), zlib.crc32(self._names))
        if not len(self):
            raise FileNotFoundError("no file%s at %s" % (" that ends in " + ", ".join(self.suffixes) if self.suffixes else "", ", ".join(given)))

    def __len__(self):
        return len(self._ends)

    def __repr__(self):
        return "<%d files, %.1f MB>" % (len(self), self.bytes / 1e6)

    @property
    def bytes(self):
        """The files' bytes, of those given by name nothing."""
        return sum(n for n in self._lengths if n != _NOT_KNOWN)

    def name(self, i):
        """The path of a file by its number."""
        return self._raw(i).decode("utf-8", "surrogateescape")

    def names(self):
        return [self.name(i) for i in range(len(self))]

    def _raw(self, i):
        return self._names[self._ends[i - 1] + 1 if i else 0:self._ends[i]]

    def fingerprint(self):
        return self._crc

    def read(self, i):
        """The content of one file by its number."""
        found, = _many.read_many(self.fs, [self._raw(i)])
        if isinstance(found, OSError):
            raise found
        return found

    def epoch(self, seed=0, rank=None, world=None, batch=None, shuffle=True, decode=None, share="all", drop_last=False, errors="raise",
              memory=MEMORY, threads=THREADS):
        """One pass: pairs (path, bytes), or decode(path, bytes) of each, or lists of batch of them.

        seed: int or str; the order follows from it. shuffle=False: in the order of the list. rank, world: which part of how many
        (default: of hops.dist). share: what happens to the files that do not divide by world ("all", "drop", "pad": see Share). decode
        runs in the threads that read ahead. errors="skip" leaves out files that cannot be read, and keeps the reasons in skipped.
        memory: how many bytes are read ahead at most, by threads."""
        return _FilesEpoch(self, seed, rank, world, share, batch, drop_last, shuffle, decode, errors, memory, threads)

    def _signature(self, tf, options):
        if options.get("decode") or options.get("batch"):
            return super()._signature(tf, options)
        return tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.string)

    # -- the list

    def _append(self, path, length):
        self._names += path.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._names))
        self._names += b"\0"
        self._lengths.append(length)

    def _wanted(self, name):
        return name[:1] not in (".", "_") and (not self.suffixes or name.endswith(self.suffixes))

    def _add(self, path):
        if re.search(r"[*?\[]", path):
            self._match(path)
        elif self.suffixes and path.endswith(self.suffixes) or posixpath.splitext(path)[1] and not self.suffixes:
            # Most likely a file: of a list of many nobody is asked for each.
            self._append(path, _NOT_KNOWN)
        elif self.fs.status(path)["type"] == "DIRECTORY":
            self._walk(path, lambda p: True, 1 << 30 if self.recursive else 1)
        else:
            self._append(path, _NOT_KNOWN)

    def _walk(self, directory, wanted, depth):
        below = []
        try:
            for page in self.fs.pages(directory):
                for e in page:
                    name = e["pathSuffix"]
                    path = directory.rstrip("/") + "/" + name
                    if e["type"] == "DIRECTORY":
                        if depth > 1 and name[:1] not in (".", "_"):
                            below.append(path)
                    elif not name:  # it is a file: listed as itself
                        self._append(directory, e["length"])
                    elif self._wanted(name) and wanted(path):
                        self._append(path, e["length"])
        except FileNotFoundError:
            raise FileNotFoundError("%s is not there" % directory) from None
        for path in below:
            self._walk(path, wanted, depth - 1)

    def _match(self, pattern):
        parts = pattern.strip("/").split("/")
        fixed = 0
        while not re.search(r"[*?\[]", parts[fixed]):
            fixed += 1
        text = "".join("(?:[^/]+/)*" if p == "**" else _translate(p) + "/" for p in parts)
        form = re.compile("/" + text.rstrip("/") + r"(?:[^/]+)?" if parts[-1] == "**" else "/" + text[:-1])
        depth = 1 << 30 if "**" in parts else len(parts) - fixed
        self._walk("/" + "/".join(parts[:fixed]), lambda p: form.fullmatch(p) is not None, depth)

    _MAGIC = b"hops-index-1\n"

    def _key(self, given):
        return repr((given, self.recursive, self.suffixes)).encode("utf-8", "surrogateescape")

    def _read_index(self, path, given):
        """The list that was kept for the same question; False: there is none."""
        try:
            body = self.fs.read(path)
        except FileNotFoundError:
            return False
        key = self._key(given)
        head = struct.Struct("<IIQ")  # CRC-32 of the rest, length of the question, number of files
        at = len(self._MAGIC)
        if not body.startswith(self._MAGIC) or len(body) < at + head.size:
            return False
        crc, question, count = head.unpack_from(body, at)
        if zlib.crc32(body[at + 4:]) != crc:
            raise OSError("%s is damaged: remove it, and it is written anew" % path)
        at += head.size
        if body[at:at + question] != key:
            return False
        at += question
        self._ends, self._lengths = array.array("Q"), array.array("Q")
        for numbers in (self._ends, self._lengths):
            numbers.frombytes(body[at:at + 8 * count])
            if struct.pack("=H", 1) != struct.pack("<H", 1):
                numbers.byteswap()
            at += 8 * count
        self._names = body[at:]
        return True

    def _write_index(self, path, given):
        key = self._key(given)
        rest = struct.pack("<IQ", len(key), len(self)) + key
        for numbers in (self._ends, self._lengths):
            if struct.pack("=H", 1) != struct.pack("<H", 1):
                numbers = array.array("Q", numbers)
                numbers.byteswap()
            rest += numbers.tobytes()
        rest += bytes(self._names)
        # The ranks of a gang do so at once, and read what another one has written: it gets its name when all of it is there.
        directory, name = posixpath.split(path)
        temporary = posixpath.join(directory, ".%s.%s.tmp" % (name, secrets.token_hex(4)))
        try:
            self.fs.create(temporary, self._MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest, overwrite=True)
            self.fs.rename(temporary, path, "OVERWRITE")
        except BaseException as e:
            if isinstance(e, FileNotFoundError) and self.fs.exists(path):
                return  # the answer to a rename that was done got lost
            try:
                self.fs.delete(temporary)
            except OSError:
                pass
            raise


_NOT_KNOWN = (1 << 64) - 1


def _translate(pattern):
    """A part of a path as a regular expression: *, ? and [] do not match a slash."""
    out, i = "", 0
    while i < len(pattern):
        c = pattern[i]
        end = pattern.find("]", i + 2) if c == "[" else -1
        if c == "*":
            out += "[^/]*"
        elif c == "?":
            out += "[^/]"
        elif end > 0:
            inside = pattern[i + 1:end].replace("\\", r"\\").replace("[", r"\[")
            out += "(?!/)[" + ("^" + inside[1:] if inside[0] == "!" else "\\" + inside if inside[0] == "^" else inside) + "]"
            i = end
        else:
            out += re.escape(c)
        i += 1
    return out


class _Bad:
    """A file that cannot be read."""

    def __init__(self, name, error):
        self.name, self.error = name, error


class _FilesEpoch(Epoch):
    def __init__(self, source, seed, rank, world, share, batch, drop_last, shuffle, decode, errors, memory, threads):
        super().__init__(source, seed, rank, world, share, batch, drop_last)
        if errors not in ("raise", "skip"):
            raise ValueError('errors is %r: it is "raise" or "skip"' % (errors,))
        self.decode, self.errors, self.memory, self.threads = decode, errors, memory, max(1, threads)
        self._order = _order.Permutation(len(source), seed) if shuffle else range(len(source))
        self.skipped = []

    def __len__(self):
        """How many samples, or batches, are left."""
        left = len(self._share) - self._taken
        if self.batch is None:
            return left
        return left // self.batch if self.drop_last else (left + self.batch - 1) // self.batch

    def _plan(self):
        """(numbers of files, bytes) of one read after the other, small ones first so that the first sample comes soon."""
        source, share, order, lengths = self.source, self._share, self._order, self.source._lengths
        chunk, size, limit = [], 0, 64
        for k in range(self._taken, len(share)):
            i = order[share.position(k)]
            n = lengths[i]
            if n == _NOT_KNOWN:
                n = _UNKNOWN
            if chunk and (size + n > BYTES or len(chunk) >= limit):
                yield chunk, size
                chunk, size, limit = [], 0, min(FILES, 2 * limit)
            chunk.append(i)
            size += n
        if chunk:
            yield chunk, size

    def _read(self, numbers):
        source = self.source
        raw = [source._raw(i) for i in numbers]
        found = _many.read_many(source.fs, raw)
        names = [r.decode("utf-8", "surrogateescape") for r in raw]
        decode = self.decode or (lambda name, content: (name, content))
        return [_Bad(name, content) if isinstance(content, OSError) else decode(name, content) for name, content in zip(names, found)]

    def _run(self):
        for chunk in _ahead(self._plan(), self._read, self.memory, self.threads):
            for item in chunk:
                if type(item) is _Bad:
                    if self.errors == "raise":
                        raise item.error
                    self.skipped.append((item.name, str(item.error)))
                    self._taken += 1
                    continue
                yield item


def shards(paths, format=None, recursive=True, suffixes=None, fs=None):
    """Files with many samples each: tar (as WebDataset writes them), tfrecord or lines. See Shards.epoch."""
    from hops import _shards
    return _shards.Shards(paths, format, recursive, suffixes, fs)


def parquet(paths, columns=None, recursive=True, suffixes=(".parquet",), fs=None):
    """Parquet files, by pyarrow. See Parquet.epoch."""
    from hops import _parquet
    return _parquet.Parquet(paths, columns, recursive, suffixes, fs)
