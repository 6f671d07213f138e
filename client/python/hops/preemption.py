"""What a program in a container hears when it is to make room for others, and what it answers.

    from hops import preemption
    for step in range(start, steps):
        train(step)
        if preemption.notice():
            save(step)
            preemption.checkpointed(step)   # the container is ended now, and started again elsewhere

Outside a container there is never a notice, and checkpointed() does nothing.
"""
import json
import os
import threading
import time
import urllib.parse

from hops import _jobs

VARIABLE = "HOPS_PREEMPTION_FILE"
MAX_FILE = 64 << 10  # bytes


class Notice:
    """That the container is to go. reason is for people; since and deadline are seconds since 1970, as time.time() gives them. At the
    deadline the program gets SIGTERM."""

    def __init__(self, reason, since, deadline):
        self.reason, self.since, self.deadline = reason, since, deadline

    @property
    def left(self):
        """Seconds until the deadline, never less than 0."""
        return max(0.0, self.deadline - time.time())

    def __eq__(self, other):
        return isinstance(other, Notice) and (self.reason, self.since, self.deadline) == (other.reason, other.since, other.deadline)

    def __hash__(self):
        return hash((self.reason, self.since, self.deadline))

    def __repr__(self):
        return "Notice(reason=%r, since=%r, deadline=%r)" % (self.reason, self.since, self.deadline)


def notice():
    """The notice that there is now, or None. It costs no more than opening a file; one that was withdrawn is there no more. ValueError:
    the file is no notice."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        with open(path, "rb") as f:
            text = f.read(MAX_FILE)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text.decode("utf-8"))
        return Notice(str(found["reason"]), found["since"] / 1000, found["deadline"] / 1000)
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise ValueError("%s (%s) is no notice: %s" % (path, VARIABLE, e)) from None


class Watch:
    """Calls callback(notice) when there is a notice, and callback(None) when it was withdrawn, in a thread of its own that looks every
    interval seconds. A file that cannot be read, or is no notice, is looked at again. What the callback raises ends the watching, as an
    exception ends any thread."""

    def __init__(self, callback, interval=1.0):
        if not interval > 0:
            raise ValueError("interval: %r is not a number of seconds above 0" % (interval,))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(callback, interval), name="hops-preemption", daemon=True)
        self._thread.start()

    def _run(self, callback, interval):
        last = None
        while not self._end.is_set():
            try:
                now = notice()
            except (OSError, ValueError):  # too many open files, say: it may pass, and a notice must not be missed then
                now = last
            if now != last:
                last = now
                callback(now)
            self._end.wait(interval)

    def close(self):
        """End the watching. A callback that runs is waited for, unless it is the caller."""
        self._end.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def watch(callback, interval=1.0):
    """Watch for a notice: see Watch. with watch(f): ... ends it with the block."""
    return Watch(callback, interval)


def checkpointed(step, timeout=30.0):
    """Say that all work up to a step (an int from 0 that grows) is saved. A container that was told to go is ended then, within
    seconds. Say it after every checkpoint: what runs since makes the container dearer to preempt. It speaks for this container alone,
    with its own token. JobError: the resource manager refuses, or does not answer within timeout seconds. False outside a container."""
    if isinstance(step, bool) or not hasattr(step, "__index__") or step.__index__() < 0:
        raise ValueError("step: %r is not a whole number from 0" % (step,))
    words = [os.environ.get(name) for name in ("HOPS_APPLICATION_ID", "HOPS_ATTEMPT", "HOPS_CONTAINER_ID")]
    if not all(words):
        return False
    path = "/api/v1/applications/%s/attempts/%s/containers/%s/checkpointed" % tuple(urllib.parse.quote(w, safe="") for w in words)
    status, answer = _jobs.Jobs(timeout=timeout).call("POST", path, {"step": step.__index__()})
    if status >= 300:
        raise _jobs.JobError("checkpoint of step %d: %s" % (step, _jobs._text(answer)))
    return True
