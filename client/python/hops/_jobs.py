"""Jobs of the resource manager, over its REST interface."""
import json
import os
import urllib.parse

from hops import _cluster, _http


class JobError(Exception):
    """The resource manager refused, or the job failed; the message says why."""


class Jobs:
    """Calls to whichever resource manager leads."""

    def __init__(self, addresses=None, user=None, timeout=60.0):
        self.addresses = list(addresses or _cluster.resource_managers())
        self._follows = not addresses  # the list of the cluster's, as it changes
        self.user = user or _cluster.user()
        self.timeout = timeout

    def call(self, method, path, body=None, headers=None, retry_unavailable=True):
        """(status, JSON) of one call, which may be repeated. Broken connections, answers without their document, 503 and 504
        (the outcome is unknown) are retried until the timeout."""
        backoff = _http.Backoff(self.timeout)
        try:
            data = None if body is None else json.dumps(body, allow_nan=False, default=_number).encode("utf-8")
        except TypeError as e:
            raise JobError("the job cannot be sent: %s" % e) from None
        except ValueError as e:
            raise JobError("the job cannot be sent: it holds NaN or an infinity, which JSON does not have (%s)" % e) from None
        headers = dict(headers or {})
        if data is not None:
            headers["Content-Type"] = "application/json"
        while True:
            problem, problems = None, []
            for address in list(self.addresses):
                try:
                    answer = self._send(address, method, path, data, headers)
                    if answer.status == 307 and "location" in answer.headers:
                        answer = self._send(_cluster.follow(address, answer.headers["location"]), method, path, data, headers)
                    if answer.status in (503, 504) and retry_unavailable:
                        problem = "%s: %s" % (address, _detail(answer))
                        continue
                    return answer.status, answer.document() if answer.status < 300 else _parse(answer)
                except _http.BROKEN as e:
                    problem = "%s: %s" % (address, e)
                    problems.append(e)
            if self._follows and len(problems) == len(self.addresses):
                self.addresses = _cluster.newer(self.addresses, *_cluster.MANAGERS)
            if len(problems) == len(self.addresses):
                _http.known(problems)
            if not backoff.wait(problem):
                raise JobError("no resource manager answers (%s). Is the cluster running? Start one with: hops dev" % problem)

    def _send(self, address, method, path, data, headers):
        def acting(secure, target):
            return self._acting(address, method, secure, target, data)

        return _http.request(address, method, path, body=data, headers=headers, timeout=30, role="resourcemanager", acting=acting)

    def submit(self, job, key):
        """Submit once, however often the call is repeated: key is the idempotency key. Returns the job's id."""
        status, answer = self.call("POST", "/api/v1/jobs", job, {"Idempotency-Key": key})
        if status >= 300:
            raise JobError("the job was refused: %s" % _text(answer))
        return answer["id"]

    def get(self, job):
        status, answer = self.call("GET", "/api/v1/jobs/" + job)
        if status >= 300:
            raise JobError("%s: %s" % (job, _text(answer)))
        return answer

    def stop(self, job):
        status, answer = self.call("DELETE", "/api/v1/jobs/" + job)
        if status >= 300:
            raise JobError("%s: %s" % (job, _text(answer)))

    def events(self, job, path, last=None):
        """(id, event, JSON) of the server-sent events of the job's application master, until it ends the stream. last is the id to go on
        after."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": str(last)} if last else {})}
        for address in list(self.addresses):
            place = address
            for _ in range(3):  # of a standby, to the leader
                stream = _http.Stream(place, "/proxy/%s%s" % (job, path), headers, "resourcemanager",
                                      lambda secure, target, to=place: self._acting(to, "GET", secure, target, None))
                if stream.status == 307 and stream.location:
                    place = _cluster.follow(place, stream.location)
                    continue
                break
            with stream:
                if stream.status != 200:
                    continue
                number, kind, data = None, None, []
                for line in stream:
                    name, _, value = line.partition(":")
                    value = value[1:] if value.startswith(" ") else value
                    if name == "id":
                        number = value
                    elif name == "event":
                        kind = value
                    elif name == "data":
                        data.append(value)
                    elif not line and data:
                        yield number, kind, json.loads("\n".join(data))
                        number, kind, data = None, None, []
                return

    def _acting(self, address, method, secure, target, data):
        if secure and os.environ.get("HOPS_CONTAINER_ID"):
            return target, _cluster.signed(address, method, target, data)
        claim, more = _cluster.proof(address, secure, self.user)
        claim = urllib.parse.urlencode(claim)
        return target + ("&" if "?" in target else "?") * bool(claim) + claim, more

    def proxy(self, job, path, body=None):
        """JSON of the job's application master, or None while (or after) there is none. With a body it is posted."""
        try:
            status, answer = self.call("GET" if body is None else "POST", "/proxy/%s%s" % (job, path), body, retry_unavailable=False)
        except JobError:
            return None
        return answer if status < 300 else None


def _number(value):
    """The number in a scalar of numpy or torch. TypeError: it is something else that JSON does not have."""
    try:
        found = value.item()
    except Exception:  # noqa: B902 - code of other people may raise anything
        found = None
    if not isinstance(found, (bool, int, float, str)):
        raise TypeError("it holds %s %.100r; numbers, text, truth values, None, lists and dicts of them can be sent" % (type(value).__name__, value))
    return found


def _parse(answer):
    try:
        return answer.json()
    except ValueError:
        return {"detail": answer.body[:500].decode("utf-8", "replace")}


def _detail(answer):
    return _text(_parse(answer))


def _text(answer):
    if isinstance(answer, dict):
        for name in ("detail", "title", "message"):
            if answer.get(name):
                return answer[name]
        if "RemoteException" in answer:
            return answer["RemoteException"].get("message", "refused")
        if isinstance(answer.get("error"), dict):
            return answer["error"].get("message", "refused")
    return str(answer)


FINAL = ("FINISHED", "FAILED", "KILLED")
