"""Signed requests: who calls proves that it has its container's token without showing it, and so does who answers.

docs/reference/contracts.md describes the format, internal/security/request.go is the other side.
"""
import hashlib
import hmac
import os
import threading
import time

SCHEME = "Hops-HMAC-SHA256"
PROOF = "x-hops-proof"

_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_last = 0


def key(token, purpose):
    """The key for requests of a purpose, from the token of a container."""
    return _hmac(token.encode("utf-8"), "hops " + purpose)


def number():
    """The time in nanoseconds since 1970, but never the same twice."""
    global _last
    with _lock:
        _last = max(_last + 1, time.time_ns())
        return _last


def sign(key, method, target, host, container, number, body):
    """Authorization of a request, with everything that it covers."""
    digest = hashlib.sha256(body or b"").hexdigest()
    text = "\n".join(["hops-request-1", method, target, host, "", container, str(number), digest])
    return "%s container=%s, number=%d, body=%s, signature=%s" % (SCHEME, container, number, digest, _hmac(key, text).hex())


def proven(key, number, status, body, proof):
    """Whether an answer to the request of that number comes from somebody who has the key."""
    text = "hops-answer-1\n%d\n%d\n%s" % (number, status, hashlib.sha256(body).hexdigest())
    return hmac.compare_digest(_hmac(key, text).hex().encode("ascii"), (proof or "").encode("utf-8", "replace"))


def _hmac(key, text):
    return hmac.new(key, text.encode("utf-8"), hashlib.sha256).digest()
