"""Delegation tokens of HDFS in the file that HADOOP_TOKEN_FILE_LOCATION names: Hadoop's credentials, in the form of Writables that
every Hadoop writes. internal/token is the other side."""
import base64
import os
import socket
import urllib.parse

from hops._login import ClusterError

VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
MAX_FILE = 16 << 20  # bytes
MAX_TOKENS = 10_000  # and as many secrets
MAX_FIELD = 16 << 10  # bytes of a part of a token

# Those that a namenode gives over Hadoop IPC, and over WebHDFS.
KINDS = ("HDFS_DELEGATION_TOKEN", "WEBHDFS delegation", "SWEBHDFS delegation")


class Malformed(ValueError):
    """Bytes are no credentials, or not whole."""


class _Reader:
    """Hadoop's Writables."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        if n < 0 or n > len(self.data) - self.at:
            raise Malformed("the file is cut short or damaged")
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self):
        """A VLong (WritableUtils): a byte of its own, or the length and sign of the bytes that follow."""
        head = int.from_bytes(self.take(1), "big", signed=True)
        if head >= -112:
            return head
        negative = head < -120
        digits = self.take(-120 - head if negative else -112 - head)
        value = int.from_bytes(digits.rjust(8, b"\0"), "big", signed=True)
        return ~value if negative else value

    def count(self, what):
        n = self.number()
        if not 0 <= n <= MAX_TOKENS:
            raise Malformed("%d %s" % (n, what))
        return n

    def field(self, limit=MAX_FIELD):
        n = self.number()
        if n > limit:
            raise Malformed("a part of %d bytes, %d are allowed" % (n, limit))
        return self.take(n)

    def text(self):
        return self.field().decode("utf-8", "replace")

    def end(self):
        if self.at < len(self.data):
            raise Malformed("the file is cut short or damaged")


class Token:
    """A token as its bearer shows it. kind and service are text; owner is whose it is."""

    def __init__(self, reader):
        start = reader.at
        identifier = reader.field()
        reader.field()  # the password, which is secret
        self.kind, self.service = reader.text(), reader.text()
        # As a parameter of WebHDFS: the Writable in base64 for URLs.
        self.text = base64.urlsafe_b64encode(reader.data[start:reader.at]).decode("ascii").rstrip("=")
        self.owner = _owner(identifier) if self.kind in KINDS else ""

    def __repr__(self):
        return "<%s of %s for %s>" % (self.kind, self.owner, self.service)


def _owner(identifier):
    """Whose a delegation token is, as its identifier says (AbstractDelegationTokenIdentifier)."""
    r = _Reader(identifier)
    if r.take(1) != b"\0":
        raise Malformed("the identifier of a delegation token has a version that is not known")
    owner, _, _ = r.text(), r.text(), r.text()  # renewer and real user
    for _ in range(4):  # issued, ends at the latest, sequence, key
        r.number()
    r.end()
    return owner


def parse(data):
    """The tokens of a file of credentials, in their order."""
    if data[:4] != b"HDTS" or len(data) < 5:
        raise Malformed("it does not begin as a file of Hadoop's credentials does (HDTS)")
    if data[4] != 0:
        raise Malformed("it is of version %d, this program reads version 0 (Writables)" % data[4])
    r = _Reader(data)
    r.take(5)
    tokens = []
    for _ in range(r.count("tokens")):
        r.field()  # the name that it has in the file
        tokens.append(Token(r))
    for _ in range(r.count("secrets")):
        r.field()
        r.field(MAX_FILE)
    r.end()
    return tokens


_read = {}  # path -> (what the file was, tokens)


def load(path):
    """The tokens in a file. One that was replaced is read anew."""
    try:
        with open(path, "rb") as f:
            s = os.fstat(f.fileno())
            state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)
            known = _read.get(path)
            if known and known[0] == state:
                return known[1]
            data = f.read(MAX_FILE + 1)
    except FileNotFoundError:
        raise ClusterError("%s names %s, which is not there" % (VARIABLE, path)) from None
    except OSError as e:
        raise ClusterError("credentials %s: %s" % (path, e.strerror)) from None
    if len(data) > MAX_FILE:
        raise ClusterError("credentials %s: more than the %d bytes that are allowed" % (path, MAX_FILE))
    try:
        tokens = parse(data)
    except Malformed as e:
        raise ClusterError("credentials %s: %s" % (path, e)) from None
    _read[path] = (state, tokens)
    return tokens


def find(fs, addresses):
    """The delegation token for the filesystem with the URI fs, or for the namenodes with these HTTP addresses, of the file that
    HADOOP_TOKEN_FILE_LOCATION names. None: there is no such file, or none in it."""
    path = os.environ.get(VARIABLE)
    tokens = [t for t in load(path) if t.kind in KINDS] if path else []
    if not tokens:
        return None
    for services in (_names, _numbers):
        for service in services(fs, addresses):
            for t in tokens:
                if t.service == service:
                    return t
    return None


def _places(fs, addresses):
    """(host, port) of a filesystem that is one namenode, and of namenodes' HTTP."""
    for url, port in [(fs, 8020)] + [(a, None) for a in addresses]:
        parts = urllib.parse.urlsplit(url or "")
        if parts.hostname and (parts.port or port):
            yield parts.hostname, parts.port or port


def _names(fs, addresses):
    """The services that Hadoop's clients have in tokens, by name."""
    yield "ha-hdfs:" + urllib.parse.urlsplit(fs or "").netloc
    for host, port in _places(fs, addresses):
        yield _joined(host, port)


def _numbers(fs, addresses):
    """The same by address, as Hadoop's clients have it mostly."""
    for host, port in _places(fs, addresses):
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue  # a name service is no host
        for _, _, _, _, at in found:
            yield _joined(at[0], port)


def _joined(host, port):
    return "[%s]:%d" % (host, port) if ":" in host else "%s:%d" % (host, port)
