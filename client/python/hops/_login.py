"""The user's login: the file that `hops login` and `hops user token` write (docs/reference/contracts.md, "Login"), and TLS to the
servers of a cluster whose authorities are known: by a login, or by a file with their certificates."""
import datetime
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import stat
import time

VERSION = 1
MAX_FILE = 256 << 10  # bytes
MAX_SERVERS = 100  # of each kind

_ADDRESS = re.compile(r"(\[[^\[\]\s/]+\]|[^:\[\]\s/]+):([0-9]{1,5})")


class ClusterError(Exception):
    """The cluster cannot be found or used; the message says what to do."""


class Hopeless(ConnectionError):
    """A server is not spoken to, and asking it again does not help; the message says what does."""


class Stranger(Hopeless):
    """Who answers is not a server of the cluster with the role that was meant."""


class Trust:
    """By what the servers of a cluster are known: the certificates of its authorities, text in PEM. ValueError: they are none."""

    def __init__(self, text):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A server is who the URIs of its certificate say, wherever it answers: Connection looks at them before anything is sent.
        self.context.check_hostname = False
        try:
            self.context.load_verify_locations(cadata=text)
        except (ssl.SSLError, ValueError) as e:
            raise ValueError("the certificates of the cluster's authorities: %s" % e) from None
        self.names = sorted({u for c in self.context.get_ca_certs() for u in _uris(c)})
        self.cluster = self.names[0][len("hops://"):] if self.names else ""


class Login:
    """A login that was read. Namenodes and resource managers are https URLs; expires is in seconds since 1970, or None."""

    def __init__(self, path, text):
        self.path = path
        try:
            text = text.decode("utf-8").strip()
        except ValueError as e:
            raise self._bad("it is not a login: %s" % e) from None
        try:
            f, end = json.JSONDecoder().raw_decode(text)
        except ValueError as e:
            if not text or text[0] == "{" and (text[-1] != "}" or e.pos >= len(text)):
                raise self._bad("it is cut off: run `hops login` again") from None
            raise self._bad("it is not a login: %s" % e) from None
        if end < len(text):
            raise self._bad("something follows its end: run `hops login` again")
        if not isinstance(f, dict):
            raise self._bad("it is not a login: it holds no JSON object")
        if f.get("version") != VERSION:
            raise self._bad("it has version %r, this program reads version %d: run `hops login` again" % (f.get("version"), VERSION))
        self.cluster, self.user, self.token = (self._text(f, name) for name in ("cluster", "user", "token"))
        if re.search(r"[^!-~]", self.token):
            raise self._bad("the token has characters that no token has")
        namenodes, managers = f.get("namenodes") or [], f.get("resource_managers") or []
        if not isinstance(namenodes, list) or not isinstance(managers, list) or not 0 < len(namenodes) <= MAX_SERVERS or len(managers) > MAX_SERVERS:
            raise self._bad("there is at least one namenode, and up to %d of namenodes and of resource managers each" % MAX_SERVERS)
        self.namenodes = [self._address(n.get("http") if isinstance(n, dict) else n) for n in namenodes]
        self.managers = [self._address(m) for m in managers]
        self.expires = self._time(f.get("expires"))
        try:
            self.trust = Trust(self._text(f, "authorities"))
        except ValueError as e:
            raise self._bad(str(e)) from None
        if self.trust.names != ["hops://" + self.cluster]:
            raise self._bad("it is for cluster %r, and its certificates are of %s" % (self.cluster, ", ".join(self.trust.names) or "nobody"))

    def _bad(self, why):
        return ClusterError("login %s: %s" % (self.path, why))

    def _text(self, f, name):
        value = f.get(name) or ""
        if not isinstance(value, str):
            raise self._bad("%s is no text" % name)
        return value

    def _address(self, a):
        found = _ADDRESS.fullmatch(a) if isinstance(a, str) else None
        if not found or int(found.group(2)) > 65535:
            raise self._bad("%r is not host:port" % (a,))
        return "https://" + a

    def _time(self, text):
        if not text:
            return None
        try:
            whole, zone = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text).groups()
            return datetime.datetime.fromisoformat(whole + ("+00:00" if zone == "Z" else zone)).timestamp()
        except (AttributeError, TypeError, ValueError):
            raise self._bad("expires is %r, and no time as in RFC 3339" % (text,)) from None

    def check_expired(self, now=None):
        """ClusterError, when the token has ended by this machine's clock."""
        if self.token and self.expires is not None and (time.time() if now is None else now) >= self.expires:
            raise ClusterError("your login expired at %s: run `hops login` again" % time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.expires)))

    def authorization(self):
        """Headers that show the token."""
        self.check_expired()
        return {"Authorization": "Bearer " + self.token} if self.token else {}

    def claim(self, user):
        """Parameters of a request for a user: none for the token's own, which it names; another one is acted for."""
        return {} if user == self.user else {"doas": user}


class Connection(http.client.HTTPConnection):
    """A connection to a server with a role: by TLS 1.3 to one on another machine, and with always to every one; in plain within this
    machine. trust is a function that says by what the server is known, None: it is spoken to in plain, wherever it is. secure tells
    how it came out."""

    def __init__(self, trust, role, host, port, timeout, always=False):
        super().__init__(host, port, timeout=timeout)
        self._trust, self._role, self._always = trust, role, always
        self.secure = always

    def connect(self):
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.secure = False
        try:
            if self._always or not here(self.sock.getpeername()[0], self.sock.getsockname()[0]):
                trust = self._trust("%s:%d" % (self.host, self.port))
                if trust is not None:
                    self._wrap(trust)
        except ClusterError as e:
            self.close()
            raise Hopeless(str(e)) from None
        except OSError:
            self.close()
            raise

    def _wrap(self, trust):
        try:
            self.sock = trust.context.wrap_socket(self.sock)
        except ssl.SSLCertVerificationError as e:
            raise Stranger("%s:%d shows no certificate of cluster %s that is good: %s" % (self.host, self.port, trust.cluster, e.verify_message)) from None
        if "hops://%s/role/%s" % (trust.cluster, self._role) not in _uris(self.sock.getpeercert()):
            raise Stranger("%s:%d is no %s of cluster %s: its certificate does not allow that role" % (self.host, self.port, self._role, trust.cluster))
        self.secure = True


def here(remote, local):
    """Whether both ends of a connection are on this machine, by their addresses."""
    try:
        a = ipaddress.ip_address(remote.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(a, "ipv4_mapped", None)
    return (mapped or a).is_loopback or remote == local


def _uris(certificate):
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]


_read = {}  # path -> (what the file was, Login or Trust)


def load(path):
    """The login in a file, which nobody but its owner, who runs this process, may read; None: there is none. A file that was
    replaced is read anew."""
    try:
        f = open(path, "rb")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ClusterError("login %s: %s" % (path, e.strerror)) from None
    with f:
        s = os.fstat(f.fileno())
        if not stat.S_ISREG(s.st_mode):
            raise ClusterError("login %s is no file" % path)
        if s.st_mode & 0o077:
            raise ClusterError("login %s has mode %04o and others could read the token: chmod 600 it; if others are on this machine, revoke it and log in again"
                             % (path, s.st_mode & 0o777))
        if s.st_uid != os.geteuid():
            raise ClusterError("login %s belongs to the user with the id %d, this process runs as %d: log in yourself" % (path, s.st_uid, os.geteuid()))
        state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)
        known = _read.get(path)
        if known and known[0] == state:
            return known[1]
        text = f.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ClusterError("login %s: more than the %d bytes that are allowed" % (path, MAX_FILE))
        login = Login(path, text)
    _read[path] = (state, login)
    return login


def roots(path):
    """The Trust in a file with the certificates of a cluster's authorities. A file that was replaced is read anew: authorities are
    rotated while programs run."""
    try:
        with open(path, "rb") as f:
            s = os.fstat(f.fileno())
            state = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)
            known = _read.get(path)
            if known and known[0] == state:
                return known[1]
            text = f.read(MAX_FILE + 1)
    except OSError as e:
        raise ClusterError("the certificates of the cluster's authorities: %s: %s" % (path, e.strerror)) from None
    try:
        if len(text) > MAX_FILE:
            raise ValueError("more than the %d bytes that are allowed" % MAX_FILE)
        trust = Trust(text.decode("ascii"))
        if len(trust.names) != 1 or not trust.cluster:
            raise ValueError("the certificates are of %s, and of one cluster they should be" % (", ".join(trust.names) or "nobody"))
    except ValueError as e:
        raise ClusterError("%s: %s" % (path, e)) from None
    _read[path] = (state, trust)
    return trust


def chosen():
    """The login that counts where nobody has named a cluster in another way, as for the command hops: that of HOPS_LOGIN, which
    has to be there, else without HADOOP_CONF_DIR that of this process's user. None: there is none. The programs of a container
    have the container's identity, and never a login."""
    if os.environ.get("HOPS_CONTAINER_ID"):
        return None
    path = os.environ.get("HOPS_LOGIN")
    if path:
        login = load(path)
        if login is None:
            raise ClusterError("HOPS_LOGIN is %s, and no file is there" % path)
    elif os.environ.get("HADOOP_CONF_DIR"):
        return None
    else:
        login = load(_home())
    if login is not None:
        login.check_expired()
    return login


def default():
    """The login of this process's user, whichever cluster is configured; None: there is none, or this is a container."""
    return None if os.environ.get("HOPS_CONTAINER_ID") else load(os.environ.get("HOPS_LOGIN") or _home())


def _home():
    return os.path.join(os.path.expanduser("~"), ".hops", "login")
