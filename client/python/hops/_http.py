"""A small HTTP client on http.client: one connection per thread and address, failover over several addresses."""
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time

from hops import _cluster, _login

# What a server that is gone, restarting or being replaced does to a connection. Who is no server of the cluster counts as gone.
BROKEN = (OSError, http.client.HTTPException)

_local = threading.local()
# A child that was forked opens connections of its own: two processes in one would be a mess.
os.register_at_fork(after_in_child=lambda: _local.__dict__.clear())


class _PinnedConnection(http.client.HTTPSConnection):
    """TLS 1.3 with the one server that has this certificate (DER), whatever that says of it."""

    def __init__(self, host, port, timeout, certificate):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate names nobody
        context.load_verify_locations(cadata=certificate)
        super().__init__(host, port, timeout=timeout, context=context)
        self._certificate = certificate

    def connect(self):
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.sock.getpeercert(binary_form=True) != self._certificate:
            self.close()
            raise ssl.SSLCertVerificationError("%s:%d shows another certificate than the one that is expected" % (self.host, self.port))


class Response:
    """Status, headers (lower-case names) and body of one answer."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body.decode("utf-8")) if self.body else None

    def document(self):
        """The JSON object that a good answer of ours always is. One without it was not made by the code that does the
        work, as when a server ends in the middle of a request: it acknowledges nothing."""
        try:
            found = self.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise http.client.HTTPException("HTTP %d without a JSON document" % self.status)
        return found


def request(address, method, target, body=None, headers=None, timeout=60.0, certificate=None, role="", acting=None):
    """One request to one address: of a server that has the certificate (DER), or without one of a server of the cluster with the
    role. A kept connection that the server has closed meanwhile is opened again once, if the
    request may be repeated. headers may be a function that makes them anew for each try. acting(secure, target) says to a server who
    acts, by (target, headers), on a connection by TLS (secure) or in plain."""
    pool = _local.__dict__.setdefault("pool", {})
    place = (address, certificate)
    for attempt in (0, 1):
        connection = pool.pop(place, None)
        fresh = connection is None
        if fresh:
            connection = _connection(address, timeout, certificate, role)
        else:
            connection.sock.settimeout(timeout)
        shown = dict(headers() if callable(headers) else headers or {})
        try:
            if fresh:
                connection.connect()
            full = target
            if acting:
                full, more = acting(connection.secure, target)
                shown.update(more)
            connection.request(method, full, body=body, headers=shown)
            answer = connection.getresponse()
            data = answer.read()
        except BROKEN:
            connection.close()
            if fresh or attempt or method not in ("GET", "HEAD"):
                raise
            continue
        if answer.will_close:
            connection.close()
        else:
            pool[place] = connection
        return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, data)


class Stream:
    """The lines of an answer that goes on. Silence for longer than timeout seconds ends it with an OSError."""

    MAX_LINE = 64 << 20

    def __init__(self, address, target, headers, role, acting, timeout=60.0):
        self._connection = _connection(address, timeout, None, role)
        try:
            self._connection.connect()
            target, more = acting(self._connection.secure, target)
            self._connection.request("GET", target, headers={**headers, **more})
            self._answer = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self.status, self.location = self._answer.status, self._answer.getheader("Location")

    def __iter__(self):
        while True:
            line = self._answer.readline(self.MAX_LINE)
            if not line:
                return
            yield line.decode("utf-8", "replace").rstrip("\r\n")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._connection.close()


def _connection(address, timeout, certificate, role):
    if certificate is None:
        return _cluster.connection(address, role, timeout)
    try:
        return _PinnedConnection(*_cluster.split(address), timeout, certificate)
    except ssl.SSLError as e:
        raise _cluster.ClusterError("%s: the certificate of its server cannot be read: %s" % (address, e)) from None


def forget(address):
    """Drop the kept connections to an address, so that the next request is not sent into one that may be dead."""
    pool = _local.__dict__.setdefault("pool", {})
    for place in [p for p in pool if p[0] == address]:
        pool.pop(place).close()


def known(problems):
    """ClusterError when asking again helps with none of the servers that were asked, as when who answers is none of the cluster."""
    if problems and all(isinstance(p, _login.Hopeless) for p in problems):
        raise _cluster.ClusterError("; ".join(str(p) for p in problems))


# QUIET is for how many seconds nobody is told that a call waits: an election takes about one.
QUIET = 2.0


class Backoff:
    """Pauses that grow from 20 ms to 1 s until a deadline."""

    def __init__(self, seconds):
        self.begun = time.monotonic()
        self.deadline = self.begun + seconds
        self.pause = 0.02

    def wait(self, problem=None):
        """Sleep a little; False when the deadline has passed. A person is told of the problem if that takes long."""
        now = time.monotonic()
        left = self.deadline - now
        if left <= 0:
            return False
        if problem and now - self.begun > QUIET:
            _cluster.waiting(problem)
        time.sleep(min(left, self.pause * (0.5 + random.random())))
        self.pause = min(1.0, self.pause * 2)
        return True
