"""What a file is made of, when it is too large to be one bytes object: sources that give buffers. A source can be gone through
again, as when a datanode was lost on the way; size is how many bytes it gives, or None if that shows only at the end."""
import hashlib
import io
import os
import queue
import threading
import zlib

PIECE = 1 << 20
# What sample() looks at: so many pieces of so many bytes, at most.
SAMPLES = 32
SAMPLE = 4 << 10


class Buffers:
    """Buffers in memory, which are not copied."""

    def __init__(self, buffers):
        self.buffers = buffers
        self._views = [memoryview(b).cast("B") for b in buffers if memoryview(b).nbytes]
        self.size = sum(len(v) for v in self._views)

    def __iter__(self):
        for view in self._views:
            for at in range(0, len(view), PIECE):
                yield view[at:at + PIECE]

    def sample(self):
        """A hash of the size and of SAMPLES pieces. Where it differs, so do the bytes."""
        digest = hashlib.sha256(b"%d" % self.size)
        step, begin, at = self.size // SAMPLES + 1, 0, 0
        for view in self._views:
            while at < begin + len(view):
                digest.update(view[at - begin:at - begin + SAMPLE])
                at += step
            begin += len(view)
        return digest.digest()


class LocalFile:
    """A file of this machine, which nobody changes meanwhile."""

    def __init__(self, path):
        self.path, self.size = path, os.path.getsize(path)

    def __iter__(self):
        left = self.size
        with open(self.path, "rb") as f:
            while left:
                data = f.read(min(PIECE, left))
                if not data:
                    raise ValueError("%s got shorter while it was read" % self.path)
                left -= len(data)
                yield data


class Written:
    """What a function writes into the file object that it is given, as it writes it: in a thread, a few pieces ahead."""

    size = None

    def __init__(self, write):
        self._write = write
        self.failure = None  # what the function has raised: writing it again would not help

    def __iter__(self):
        pieces, over = queue.Queue(4), threading.Event()
        thread = threading.Thread(target=self._run, args=(pieces, over), daemon=True)
        thread.start()
        try:
            while True:
                piece = pieces.get()
                if isinstance(piece, BaseException):
                    self.failure = piece
                    raise piece
                if piece is None:
                    return
                yield piece
        finally:
            over.set()
            while thread.is_alive():
                try:
                    pieces.get(timeout=0.01)
                except queue.Empty:
                    pass
            thread.join()

    def _run(self, pieces, over):
        out = _Out(pieces, over)
        try:
            self._write(out)
            out.flush()
            pieces.put(None)
        except BaseException as e:  # noqa: B902 - code of other people may raise anything
            pieces.put(e)


class _Over(Exception):
    """Nobody reads any more."""


class _Out:
    """A file that is written once, from the beginning to the end."""

    def __init__(self, pieces, over):
        self._pieces, self._over, self._rest = pieces, over, bytearray()

    def write(self, data):
        view = memoryview(data).cast("B")
        if len(self._rest) + len(view) < PIECE:
            self._rest += view
            return len(view)
        self.flush()
        for at in range(0, len(view), PIECE):
            self._put(bytes(view[at:at + PIECE]))
        return len(view)

    def flush(self):
        if self._rest:
            data, self._rest = bytes(self._rest), bytearray()
            self._put(data)

    def _put(self, data):
        if self._over.is_set():
            raise _Over()
        self._pieces.put(data)

    def read(self, size=-1):  # numpy takes nothing for a file that has none
        raise io.UnsupportedOperation("this file is written only")

    def writable(self):
        return True


class Counted:
    """A source whose bytes are counted and summed as they go by. length and crc32 are those of the last time that it was gone
    through to the end."""

    def __init__(self, source):
        self.source, self.size, self.length, self.crc32 = source, source.size, 0, 0

    @property
    def failure(self):
        return getattr(self.source, "failure", None)

    def __iter__(self):
        length, crc = 0, 0
        for piece in self.source:
            crc = zlib.crc32(piece, crc)
            length += len(piece)
            yield piece
        self.length, self.crc32 = length, crc


class Hashed:
    """A source whose bytes are hashed as they go by, while they are in the processor's cache. sha256 is that of the last time that it was
    gone through to the end, in hex."""

    def __init__(self, source):
        self.source, self.size, self.sha256 = source, source.size, None

    @property
    def failure(self):
        return getattr(self.source, "failure", None)

    def __iter__(self):
        self.sha256, digest = None, hashlib.sha256()
        for piece in self.source:
            digest.update(piece)
            yield piece
        self.sha256 = digest.hexdigest()


def sha256(source):
    """The SHA-256 of a source, in hex."""
    digest = hashlib.sha256()
    for piece in source:
        digest.update(piece)
    return digest.hexdigest()


def parallel(function, items, threads):
    """[function(item) for item in items], by some threads at a time. The first exception ends it when all threads have come to
    the end of what they do."""
    items = list(items)
    out, errors, lock, at = [None] * len(items), [], threading.Lock(), iter(range(len(items)))

    def work():
        while not errors:
            with lock:
                i = next(at, None)
            if i is None:
                return
            try:
                out[i] = function(items[i])
            except BaseException as e:  # noqa: B902 - it is raised below
                errors.append(e)

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, len(items)) - 1)]
    for t in helpers:
        t.start()
    work()
    for t in helpers:
        t.join()
    if errors:
        raise errors[0]
    return out
