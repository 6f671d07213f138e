"""A WebHDFS client with failover, on the standard library alone."""
import collections
import json
import os
import posixpath
import threading
import urllib.parse

from hops import _cluster, _http, _token

# Exceptions by which a namenode says: ask another one, or ask again.
_ELSEWHERE = {"StandbyException", "ObserverRetryOnActiveException"}
_AGAIN = {"RetriableException", "SafeModeException", "NotReplicatedYetException", "AlreadyBeingCreatedException", "RecoveryInProgressException"}

_CLASSES = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "AccessControlException": PermissionError,
    "AuthorizationException": PermissionError,
    "SecurityException": PermissionError,
    "InvalidToken": PermissionError,
    "ParentNotDirectoryException": NotADirectoryError,
}


class HdfsError(OSError):
    """What a namenode or datanode answered. exception is the name of the Java class."""

    def __init__(self, exception, message):
        super().__init__(message)
        self.exception = exception


def _error(exception, message):
    base = _CLASSES.get(exception)
    if base is None:
        return HdfsError(exception, message)
    kind = type(exception, (base, HdfsError), {})
    e = kind.__new__(kind, message)
    OSError.__init__(e, message)
    e.exception = exception
    return e


class WebHDFS:
    """Files of the cluster. Paths are absolute. timeout is how many seconds one operation may take in all, failovers
    included."""

    def __init__(self, addresses=None, user=None, timeout=90.0):
        self.addresses = list(addresses or _cluster.webhdfs())
        self._follows = not addresses or _configured(addresses)  # the list of the cluster's namenodes, as it changes
        self.user = user or _cluster.user()
        self.timeout = timeout
        self._active = 0

    # -- plumbing

    def _target(self, path, op, params):
        if not path.startswith("/"):
            raise ValueError("path %r is not absolute" % path)
        query = {"op": op}
        query.update({k: ("true" if v is True else "false" if v is False else v) for k, v in params.items() if v is not None})
        return "/webhdfs/v1" + urllib.parse.quote(path) + "?" + urllib.parse.urlencode(query)

    def _ask(self, role, address, method, target, **how):
        """(answer, problem) of one request. A delegation token that is not good any more is read anew, once."""
        shown = []

        def acting(secure, target):
            token = self._token() if secure else None
            shown.append(token)
            claim, headers = _cluster.proof(address, secure, self.user, token)
            path, _, query = target.partition("?")
            pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
            if "delegation" in claim or not any(k == "delegation" for k, _ in pairs):  # a redirect may carry one of its own
                pairs = [p for p in pairs if p[0] not in ("user.name", "doas", "delegation")] + list(claim.items())
            return path + "?" + urllib.parse.urlencode(pairs), headers

        for again in (True, False):
            answer = _http.request(address, method, target, role=role, acting=acting, **how)
            problem = _problem(answer)
            token = shown[-1]
            if not problem or problem[0] != "InvalidToken" or token is None:
                return answer, problem
            now = self._token()
            if not again or now is None or now.text == token.text:
                return answer, (problem[0], "%s (the token of %s for %s, in %s)" % (problem[1], token.owner, token.service, os.environ.get(_token.VARIABLE)))

    def _token(self):
        """The delegation token for the filesystem, None: there is none."""
        return _cluster.delegation(self.addresses)

    def _namenode(self, method, path, op, params, backoff, body=None):
        """(address, answer) of the active namenode, found by asking around until the deadline."""
        while True:
            unreachable = {}
            active = self._active
            addresses = self.addresses
            for i in range(len(addresses)):
                k = (active + i) % len(addresses)
                address = addresses[k]
                try:
                    # A dead namenode's host answers at once or never: do not wait long for one of several.
                    answer, problem = self._ask("namenode", address, method, self._target(path, op, params), body=body, timeout=min(30.0, self.timeout),
                                                headers={"Content-Length": "0"} if method in ("PUT", "POST") and body is None else None)
                except _http.BROKEN as e:
                    unreachable[address] = e
                    continue
                if problem and problem[0] in _ELSEWHERE:
                    unreachable[address] = problem[1]
                    continue
                self._active = k
                if problem and problem[0] in _AGAIN and not (op == "CREATE" and problem[0] == "AlreadyBeingCreatedException"):
                    unreachable[address] = problem[1]
                    break
                if problem:
                    raise _error(*problem)
                return address, answer
            if self._follows and len(unreachable) == len(self.addresses):
                self.addresses = _cluster.newer(self.addresses, *_cluster.NAMENODES)
                if len(self.addresses) > len(unreachable):
                    continue
            _http.known(unreachable.values())
            what = "; ".join("%s: %s" % p for p in sorted(unreachable.items()))
            if not backoff.wait(what):
                raise TimeoutError("%s of %s: no namenode served it within %.0f s (%s)" % (op, path, self.timeout, what))

    def _data(self, method, path, op, params, body, backoff):
        """The second step of CREATE, APPEND and OPEN: with the datanode that the namenode chose."""
        namenode, answer = self._namenode(method, path, op, dict(params, noredirect=True), backoff)
        location = answer.json()["Location"]
        parts = urllib.parse.urlsplit(location)
        address = _cluster.follow(namenode, location)
        headers = {"Content-Type": "application/octet-stream"} if body is not None else None
        if getattr(body, "size", None) is not None:  # without, http.client sends a source in chunks
            headers["Content-Length"] = str(body.size)
        try:
            answer, problem = self._ask("datanode", address, method, parts.path + "?" + parts.query, body=body, headers=headers, timeout=self.timeout)
        except _http.BROKEN as e:
            if getattr(body, "failure", None) is not None:
                raise
            raise _Lost("datanode %s: %s" % (parts.netloc, e)) from e
        if problem:
            if problem[0] in _ELSEWHERE or problem[0] in _AGAIN:
                raise _Lost(problem[1])
            raise _error(*problem)
        return answer

    def _simple(self, method, path, op, **params):
        return self._namenode(method, path, op, params, _http.Backoff(self.timeout))[1].json()

    # -- operations

    def status(self, path):
        """The FileStatus of a path, as WebHDFS names its fields. FileNotFoundError: there is none."""
        return self._simple("GET", path, "GETFILESTATUS")["FileStatus"]

    def exists(self, path):
        try:
            self.status(path)
            return True
        except FileNotFoundError:
            return False

    def list(self, path):
        """FileStatus of each entry of a directory, with its name in pathSuffix."""
        return self._simple("GET", path, "LISTSTATUS")["FileStatuses"]["FileStatus"]

    def pages(self, path):
        """FileStatus of each entry of a directory, page by page: lists of some 1,000. In the order of the names' bytes."""
        after = None
        while True:
            page = self._simple("GET", path, "LISTSTATUS_BATCH", startAfter=after)["DirectoryListing"]
            entries = page["partialListing"]["FileStatuses"]["FileStatus"]
            if entries:
                yield entries
            if not page["remainingEntries"] or not entries:
                return
            after = entries[-1]["pathSuffix"]

    def mkdirs(self, path, permission=None):
        return self._simple("PUT", path, "MKDIRS", permission=permission)["boolean"]

    def delete(self, path, recursive=False):
        """True if something was removed."""
        return self._simple("DELETE", path, "DELETE", recursive=recursive)["boolean"]

    def rename(self, source, destination, options=None):
        """Atomic. A rename whose answer was lost on the way is recognised as done. With options (renameoptions of WebHDFS: "NONE",
        "OVERWRITE") what keeps it from being done is raised, as FileExistsError, and FileNotFoundError may mean a lost answer."""
        if options:
            self._simple("PUT", source, "RENAME", destination=destination, renameoptions=options)
            return True
        try:
            if self._simple("PUT", source, "RENAME", destination=destination)["boolean"]:
                return True
        except FileNotFoundError:
            pass
        return not self.exists(source) and self.exists(destination)

    def publish(self, steps):
        """Several changes in one go, all of them or none: steps of PUBLISH (docs/reference/rest.md), with absolute paths. It is done once, also when
        an answer is lost. Returns the path of the snapshot that was made, None for none."""
        body = json.dumps({"steps": steps}).encode("utf-8")
        try:
            # The identity is that of all tries.
            answer = self._namenode("POST", "/", "PUBLISH", {"requestid": os.urandom(16).hex()}, _http.Backoff(self.timeout), body=body)[1]
        except HdfsError as e:
            if e.exception in ("IllegalArgumentException", "UnsupportedOperationException") and "is not a valid" in str(e):
                raise HdfsError("UnsupportedOperationException", "publish is not supported until all namenodes run a version of hops that has it") from None
            raise
        return answer.json()["Publish"]["snapshot"]

    def content_summary(self, path):
        return self._simple("GET", path, "GETCONTENTSUMMARY")["ContentSummary"]

    def set_permission(self, path, permission):
        self._simple("PUT", path, "SETPERMISSION", permission=permission)

    def set_owner(self, path, owner=None, group=None):
        self._simple("PUT", path, "SETOWNER", owner=owner, group=group)

    def read(self, path, offset=0, length=None):
        """Bytes of a file. Reading an empty file or past its end gives no bytes."""
        if length == 0:
            return b""
        backoff = _http.Backoff(self.timeout)
        while True:
            try:
                return self._data("GET", path, "OPEN", {"offset": offset, "length": length}, None, backoff).body
            except _Lost as e:
                if not backoff.wait(str(e)):
                    raise
            except HdfsError as e:
                if "out of the range" in str(e):
                    return b""
                raise

    def create(self, path, data=b"", overwrite=False, replication=None, permission=None):
        """Make a file with this content: bytes, or a source (_stream.py). It is durable when the call returns. FileExistsError: it
        exists and overwrite is not set."""
        backoff = _http.Backoff(self.timeout)
        params = {"overwrite": overwrite, "replication": replication, "permission": permission}
        while True:
            try:
                self._data("PUT", path, "CREATE", params, data, backoff)
                return
            except _Lost as e:
                # Our own half-made file may be there now.
                params["overwrite"] = True
                if not backoff.wait(str(e)):
                    raise

    def append(self, path, data):
        """Append to a file. An append whose answer was lost is completed, not repeated: the file must have no other
        writer."""
        start = self.status(path)["length"]
        backoff = _http.Backoff(self.timeout)
        rest = data
        while rest:
            try:
                self._data("POST", path, "APPEND", {}, rest, backoff)
                return
            except _Lost as e:
                if not backoff.wait(str(e)):
                    raise
                done = self.status(path)["length"] - start
                if done < 0 or done > len(data):
                    raise HdfsError("IOException", "%s changed while it was appended to" % path) from None
                rest = data[done:]


def _configured(addresses):
    try:
        return list(addresses) == _cluster.webhdfs()
    except _cluster.ClusterError:
        return False


class _Lost(OSError):
    """The outcome of a data transfer is unknown."""


def _problem(answer):
    """(exception, message) of an error answer, None of a good one."""
    if answer.status < 400:
        return None
    try:
        remote = json.loads(answer.body.decode("utf-8"))["RemoteException"]
        return remote.get("exception", "IOException"), "; ".join(line.strip(" ;") for line in remote.get("message", "").splitlines() if line.strip())
    except (ValueError, KeyError, TypeError):
        return "IOException", "HTTP %d: %s" % (answer.status, answer.body[:200].decode("utf-8", "replace"))


class Appender:
    """A growing file (log, events): add() keeps bytes, flush() appends them, and what could not be written stays for the
    next flush. Only one Appender may write a file.

    Of what comes faster than it is written, at most limit bytes are kept: the first half and the last. A file ends at total
    bytes; of what comes after that the last limit/2 are kept and written by the last flush. A line in the file says how much
    is missing at its place."""

    def __init__(self, fs, path, limit=64 << 20, total=1 << 30):
        self.fs, self.path, self.limit, self.total = fs, path, limit, total
        self._lock = threading.Lock()
        self._head, self._head_size = [], 0
        self._tail, self._tail_size = collections.deque(), 0
        self._missing = 0  # bytes between head and tail
        self._written = 0
        self._made = False

    def add(self, data):
        with self._lock:
            if not self._tail and self._head_size + len(data) <= min(self.limit // 2, self.total - self._written):
                self._head.append(data)
                self._head_size += len(data)
                return
            if len(data) > self.limit // 2:
                cut = len(data) - self.limit // 2
                self._missing += cut
                data = data[cut:]
            self._tail.append(data)
            self._tail_size += len(data)
            while self._tail_size > self.limit // 2:
                gone = len(self._tail.popleft())
                self._tail_size -= gone
                self._missing += gone

    def flush(self, last=False):
        """Write what is pending. Raises OSError when the filesystem does not take it; nothing is lost then. last: nothing
        follows, so that the end of a file beyond its size is written too."""
        with self._lock:
            end = last or self._written + self._head_size + self._tail_size <= self.total
            parts, self._head, self._head_size = self._head, [], 0
            if end and self._tail:
                if self._missing:
                    parts.append(b"\n[%d bytes are missing here: more was written than is kept]\n" % self._missing)
                parts.extend(self._tail)
                self._tail, self._tail_size, self._missing = collections.deque(), 0, 0
        data = b"".join(parts)
        if not data:
            return
        try:
            if not self._made and not self.fs.exists(self.path):
                self.fs.create(self.path, data)
            else:
                self.fs.append(self.path, data)
            self._made = True
            self._written += len(data)
        except OSError:
            with self._lock:
                self._head.insert(0, data)
                self._head_size += len(data)
            raise


def join(*parts):
    return posixpath.join(*parts)
