"""Reads many small files with few requests: OPENMANY of the namenode says, for thousands of paths at once, what to ask which datanode
for, and READMANY of a datanode answers with all of it. The wire is in docs/reference/rest.md."""
import array
import itertools
import json
import struct
import sys
import urllib.parse
import zlib

from hops import _cluster, _http, _webhdfs

# What one request may ask for: namenodes refuse more.
MAX_NAMES = 16384
MAX_NAMES_BYTES = 4 << 20

_FAILED = 0xFFFFFFFF
_HEAD = struct.Struct("<4sIIIQ")  # magic, pieces, length of the problems, CRC-32 of what follows, length of the data

# Problems of one file that asking again, or asking another datanode, may solve.
_PASSING = {"BlockMissingException", "RetriableException", "SafeModeException"}


class _Damaged(OSError):
    """An answer is not what was sent."""


def numbers(data):
    """An array of the little-endian 32-bit numbers in data."""
    out = array.array("I", bytes(data))
    if sys.byteorder == "big":
        out.byteswap()
    return out


def parse_plan(body):
    """(head, [(numbers of the paths, request)] for each of its groups) of the answer to an OPENMANY."""
    if body[:4] != b"HPM1":
        raise _Damaged("the answer to OPENMANY is none of this version")
    size, = struct.unpack_from("<I", body, 4)
    head = json.loads(body[8:8 + size].decode("utf-8"))
    at, groups = 8 + size, []
    for g in head["groups"]:
        middle = at + 4 * g["files"]
        end = middle + g["request"]
        groups.append((numbers(body[at:middle]), body[middle:end]))
        at = end
    if at != len(body):
        raise _Damaged("the answer to OPENMANY has %d bytes, %d were announced" % (len(body), at))
    return head, groups


def parse_answer(body):
    """([bytes, None for what failed], [(number, exception, message)]) of the answer to a READMANY."""
    if len(body) < _HEAD.size:
        raise _Damaged("the answer to READMANY has %d bytes" % len(body))
    magic, count, tail, crc, data = _HEAD.unpack_from(body)
    begin = _HEAD.size + 4 * count
    if magic != b"HRA1" or begin + data + tail != len(body):
        raise _Damaged("the answer to READMANY is none of this version, or a part of it is missing")
    if zlib.crc32(memoryview(body)[_HEAD.size:]) != crc:
        raise _Damaged("the answer to READMANY was damaged on the way")
    lengths = numbers(body[_HEAD.size:begin])
    problems = json.loads(body[len(body) - tail:].decode("utf-8"))
    for i, _, _ in problems:
        lengths[i] = 0
    ends = list(itertools.accumulate(lengths, initial=begin))
    pieces = [body[a:b] for a, b in zip(ends, ends[1:])]
    for i, _, _ in problems:
        pieces[i] = None
    return pieces, problems


def read_many(fs, names, maxbytes=64 << 20, root="/"):
    """The contents of files, in the order of names: bytes, or an OSError of a file that cannot be read. names are bytes, absolute or
    below root. What a datanode cannot give is asked of another one. maxbytes bounds what one request to the namenode is about, not the
    result."""
    out = [None] * len(names)
    wanted = list(range(len(names)))
    exclude, backoff, last = set(), None, "nobody said why"
    while wanted:
        asked, rest = _portion(names, wanted)
        params = {"maxbytes": maxbytes, "excludedatanodes": ",".join(sorted(exclude)) or None}
        try:
            answer = fs._namenode("POST", root, "OPENMANY", params, _http.Backoff(fs.timeout), body=b"\0".join([names[i] for i in asked]))
        except _webhdfs.HdfsError as e:
            if _unknown(e):
                return _one_by_one(fs, names, root)
            raise
        namenode, answer = answer
        head, groups = parse_plan(answer.body)
        for i in head["empty"] or ():
            out[asked[i]] = b""
        for i, length in head["large"] or ():
            out[asked[i]] = _large(fs, _path(root, names[asked[i]]), length)
        failed, progress = [], False
        for i, exception, message in head["errors"] or ():
            if exception in _PASSING:
                failed.append(asked[i])
                last = message
            else:
                out[asked[i]] = _webhdfs._error(exception, message)
        for g, (files, request) in zip(head["groups"] or (), groups):
            try:
                pieces, problems = _ask(fs, namenode, g["url"], request)
                if len(pieces) != len(files):
                    raise _Damaged("%s answered with %d of %d files" % (g["datanode"], len(pieces), len(files)))
            except OSError as e:
                if isinstance(e, _webhdfs.HdfsError) and _unknown(e):  # an older datanode
                    for i in files:
                        out[asked[i]] = _large(fs, _path(root, names[asked[i]]), None)
                    continue
                failed.extend(asked[i] for i in files)
                last = "%s: %s" % (g["datanode"], e)
                if not (isinstance(e, _webhdfs.HdfsError) and e.exception in ("InvalidToken", "RetriableException")):
                    exclude.add(g["datanode"])
                continue
            for i, piece in zip(files, pieces):
                out[asked[i]] = piece
            for i, _, message in problems:
                failed.append(asked[files[i]])
                last = "%s: %s" % (g["datanode"], message)
            if problems:
                exclude.add(g["datanode"])
            progress = progress or len(problems) < len(files)
        told = head["names"]
        wanted = sorted(failed) + asked[told:] + rest
        if failed and not progress:
            # Nobody is left to ask, or all are busy: begin anew with every datanode, after a while.
            if any(m in _PASSING for _, m, _ in head["errors"] or ()):
                exclude.clear()
            backoff = backoff or _http.Backoff(min(fs.timeout, 15.0))
            if not backoff.wait(last):
                for i in failed:
                    out[i] = _webhdfs._error("BlockMissingException", "%s cannot be read: %s" % (_path(root, names[i]), last))
                wanted = asked[told:] + rest
                backoff = None
        elif not failed:
            exclude.clear()
            backoff = None
    return out


def _portion(names, wanted):
    """What of wanted one request may name, and the rest."""
    size = 0
    for k, i in enumerate(wanted):
        size += len(names[i]) + 1
        if k == MAX_NAMES or size > MAX_NAMES_BYTES:
            return wanted[:k], wanted[k:]
    return wanted, []


def _ask(fs, namenode, url, request):
    """The pieces and problems that a datanode answers."""
    parts = urllib.parse.urlsplit(url)
    address = _cluster.follow(namenode, url)
    for again in (True, False):
        try:
            answer, problem = fs._ask("datanode", address, "POST", parts.path + "?" + parts.query, body=request,
                                      headers={"Content-Type": "application/octet-stream"}, timeout=min(30.0, fs.timeout))
            break
        except _http.BROKEN as e:
            # A connection that was kept may have been closed meanwhile; reading twice does no harm.
            if not again:
                raise OSError("%s: %s" % (parts.netloc, e)) from e
            _http.forget(address)
    if problem:
        raise _webhdfs._error(*problem)
    return parse_answer(answer.body)


def _unknown(e):
    """Whether a server says that it does not know the operation: it is of an older version, or not ours."""
    return e.exception in ("IllegalArgumentException", "UnsupportedOperationException") and ("is not a valid" in str(e) or "No enum constant" in str(e))


def _path(root, name):
    name = name.decode("utf-8", "surrogateescape")
    return name if name.startswith("/") else root.rstrip("/") + "/" + name


# A file that is read by itself comes in pieces of this size.
_PIECE = 32 << 20


def _large(fs, path, length):
    """A file by itself: bytes, or the OSError."""
    try:
        if length is None:
            return fs.read(path)
        parts, at = [], 0
        while at < length:
            parts.append(fs.read(path, at, min(_PIECE, length - at)))
            if not parts[-1]:
                raise OSError("%s had %d bytes and ends at %d: it was changed while it was read" % (path, length, at))
            at += len(parts[-1])
        return b"".join(parts)
    except OSError as e:
        return e


def _one_by_one(fs, names, root):
    """Without a server that knows OPENMANY: an OPEN for each file."""
    return [_large(fs, _path(root, n), None) for n in names]
