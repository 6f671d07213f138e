"""The user's login: the file that `hops login` and `hops user token` write (docs/reference/contracts.md, "Login"), and TLS to the
servers of its cluster."""
import datetime
import http.client
import json
import os
import re
import socket
import ssl
import stat
import threading
import time

VERSION = 1
MAX_FILE = 256 << 10  # bytes
MAX_SERVERS = 100  # of each kind

_ADDRESS = re.compile(r"(\[[^\[\]\s/]+\]|[^:\[\]\s/]+):([0-9]{1,5})")


class ClusterError(Exception):
    """The cluster cannot be found or used; the message says what to do."""


class Stranger(ConnectionError):
    """Who answers is not a server of the login's cluster with the role that was meant."""


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
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A server is who the URIs of its certificate say, wherever it answers: Connection looks at them before anything is sent.
        self.context.check_hostname = False
        try:
            self.context.load_verify_locations(cadata=self._text(f, "authorities"))
        except (ssl.SSLError, ValueError) as e:
            raise self._bad("the certificates of the cluster's authorities: %s" % e) from None
        roots = [u for c in self.context.get_ca_certs() for u in _uris(c)]
        if not roots or any(u != "hops://" + self.cluster for u in roots):
            raise self._bad("it is for cluster %r, and its certificates are of %s" % (self.cluster, ", ".join(roots) or "nobody"))

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
    """A connection by TLS 1.3 to a server of a login's cluster with a role."""

    def __init__(self, login, role, host, port, timeout):
        super().__init__(host, port, timeout=timeout)
        self._login, self._role = login, role

    def connect(self):
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain = self.sock
        try:
            self.sock = self._login.context.wrap_socket(plain)
            uris = _uris(self.sock.getpeercert())
        except ssl.SSLCertVerificationError as e:
            self.close()
            raise Stranger("%s:%d shows no certificate of cluster %s that is good: %s" % (self.host, self.port, self._login.cluster, e.verify_message)) from None
        except OSError:
            self.close()
            raise
        if "hops://%s/role/%s" % (self._login.cluster, self._role) not in uris:
            self.close()
            raise Stranger("%s:%d is no %s of cluster %s: its certificate does not allow that role" % (self.host, self.port, self._role, self._login.cluster))


def _uris(certificate):
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]


_lock = threading.Lock()
_read = {}  # path -> (what the file was, Login)


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
        with _lock:
            known = _read.get(path)
            if known and known[0] == state:
                return known[1]
        text = f.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ClusterError("login %s: more than the %d bytes that are allowed" % (path, MAX_FILE))
        login = Login(path, text)
    with _lock:
        _read[path] = (state, login)
    return login


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
        login = load(os.path.join(os.path.expanduser("~"), ".hops", "login"))
    if login is not None:
        login.check_expired()
    return login
