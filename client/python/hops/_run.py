"""The trial that this process runs, as seen by user code: reporter, checkpoint, tensorboard ask here. Where no trial
runs, on a laptop, they get a local one (_local.py).

A trial process talks to its executor over one socket, a JSON object a line. It sends
    {"metric": value, "step": n, "time": seconds, "pid": process}   {"log": text}   {"checkpoint": {..., "pid": process}}   {"final": {...}}   {"serving": true}
and receives {"op": "stop" | "pause" | "checkpoint", "reason": text} and the answers {"checkpoint": {"step": n, ...}} in the order of the requests.
"""
import collections
import json
import math
import operator
import os
import secrets
import select
import threading
import time

from hops import _wire


class EarlyStopException(Exception):
    """Raised by reporter.broadcast when the trial is to stop. metric is the one reported last."""

    def __init__(self, metric):
        super().__init__("the trial was stopped early")
        self.metric = metric


class InvalidParams(Exception):
    """Raised by a training function for parameters that make no sense together: the trial is not tried again."""


class SubmissionReached(BaseException):
    """Ends the import of a script by an executor at the call that submits. Not an Exception: scripts catch those."""


# Whether this process imports the module of a function that it is to run, and whether that import came to a submission.
importing = reached = False


def submitting(call):
    """To be called before anything is submitted. Ends the import of a script by an executor; RuntimeError inside a container."""
    global reached
    if importing:
        reached = True
        raise SubmissionReached(call)
    if os.environ.get("HOPS_CONTAINER_ID") and os.environ.get("HOPS_MAY_SUBMIT") != "1":
        who, whose = ("a trial", "experiment") if os.environ.get("HOPS_CONTROLLER") else ("a job's container", "job")
        raise RuntimeError("%s was called by %s, which may not submit anything; if it is to, set HOPS_MAY_SUBMIT=1 in the env of the %s" % (call, who, whose))


class CheckpointRefused(OSError):
    """The controller has not taken a checkpoint."""


class CheckpointIncomplete(CheckpointRefused):
    """Something that it names is not there."""


class Channel:
    """JSON lines over a socket. Any thread may send, one may receive."""

    def __init__(self, sock):
        self.sock, self._in, self._sending = sock, b"", threading.Lock()

    def send(self, message):
        # Both ends are Python: NaN and the infinities stay numbers here. The executor encodes them for the controller.
        line = json.dumps(message).encode("ascii") + b"\n"
        with self._sending:
            self.sock.sendall(line)

    def receive(self, timeout=None):
        """The next message; None when none comes in time; EOFError when the other end is gone."""
        while b"\n" not in self._in:
            if timeout is not None and not select.select([self.sock], [], [], timeout)[0]:
                return None
            data = self.sock.recv(65536)
            if not data:
                raise EOFError("the executor is gone")
            self._in += data
        line, self._in = self._in.split(b"\n", 1)
        return json.loads(line.decode("utf-8"))


class Trial:
    """What a running trial knows of itself. order is the Assignment of the executor protocol."""

    def __init__(self, order, channel, fs):
        self.id, self.attempt, self.params = order["trial"], order["attempt"], order["params"]
        self.gang = order.get("gang")  # this member's part, if several processes run the trial together
        self.rank = self.gang["rank"] if self.gang else 0
        self.budget = order.get("budget") or {}
        self.seed = order.get("seed", 0)
        self.checkpoints = order["dirs"]["checkpoints"]
        # TensorBoard shows the files of one directory as one run: each rank has its own.
        self.logdir = order["dirs"]["tensorboard"] + ("/rank-%d" % self.rank if self.rank else "")
        # Where checkpoints share their shards; "": they share none.
        self.blobs = order["dirs"].get("blobs") or ""
        resume = order.get("resume") or {}
        self.resume_from, self.resume_step = resume.get("uri", ""), resume.get("step", 0)
        # Checkpoints that are committed and kept, in order of commit: {"step", "uri", "metric"}. The last one, from which this
        # attempt goes on, may be another trial's.
        self.committed = [c for c in order.get("checkpoints") or [] if c["uri"] != self.resume_from] + ([resume] if resume else [])
        self.fs = fs
        self._channel = channel
        # Of what is reported: steps are sent in the order in which they were counted. Again, because a signal's handler may report too.
        self._reporting = threading.RLock()
        self._reading = threading.Lock()  # of the channel
        self._answers = collections.deque()
        self.last_step = None
        self.last_metric = None
        self._stop = None
        self._wanted = False  # a checkpoint was asked for, and none has been saved since

    def broadcast(self, metric, step=None):
        """Report the metric at a step; steps count up by themselves when none is given. EarlyStopException: stop now."""
        value = number(metric)
        if step is not None:
            step = whole_number(step)
        with self._reporting:
            if step is None:
                step = self.resume_step + 1 if self.last_step is None else self.last_step + 1
            if self.last_step is not None and step < self.last_step:
                raise ValueError("step %d was reported after step %d: steps must not go backwards" % (step, self.last_step))
            self.last_step, self.last_metric = step, value
            self._report(value, step)
        if self._stop is not None:
            raise EarlyStopException(value)

    def _report(self, value, step):
        self._channel.send({"metric": value, "step": step, "time": time.time(), "pid": os.getpid()})
        self._listen(0)

    def log(self, message):
        self._channel.send({"log": str(message)})

    def checkpoint_requested(self):
        """Whether a checkpoint is wanted now, because the container will be taken away."""
        if self._channel is not None:
            self._listen(0)
        return self._wanted

    def unnamed(self, final):
        """The directory in which a checkpoint is written before it gets its name, another one each time: a datanode that was given up
        may make a file late, when another one has written it and its name counts."""
        return "%s.%s.tmp" % (final, secrets.token_hex(4))

    def commit_checkpoint(self, step, uri, files, metric):
        """Have the controller record a checkpoint that lies in the filesystem. Returns when it has. One thread at a time."""
        self._channel.send({"checkpoint": {"step": step, "uri": uri, "files": files, "metric": metric, "pid": os.getpid()}})
        with self._reading:
            while True:
                while not self._answers:
                    self._take(self._channel.receive())
                answer = self._answers.popleft()
                if answer["step"] == step:  # not one to a request whose wait an exception of a signal's handler ended
                    break
        if answer.get("code") == "CHECKPOINT_INCOMPLETE":
            raise CheckpointIncomplete(answer["error"])
        if answer.get("error"):
            raise CheckpointRefused(answer["error"])
        keep = answer.get("keep")
        self.committed = [c for c in self.committed if c["step"] != step and (keep is None or c["step"] in keep)]
        self.committed.append({"step": step, "uri": uri, "metric": metric})

    def saving(self, wanted=False):
        """A checkpoint is being saved, so that none is wanted; or, wanted, its save has failed."""
        was, self._wanted = self._wanted, wanted
        return was

    def serving(self):
        """This member of a gang does not call the function: it may be killed as soon as it is to stop."""
        self._channel.send({"serving": True})

    def wait(self):
        """Wait for the stop of a member that only holds its place."""
        while self._stop is None:
            self._take(self._channel.receive())
        return {"stopped": True}

    def finish(self, final):
        self._channel.send({"final": final})

    def _listen(self, timeout):
        if not self._reading.acquire(blocking=False):
            return  # who waits for an answer takes what comes meanwhile
        try:
            while True:
                message = self._channel.receive(timeout)
                if message is None:
                    return
                self._take(message)
        finally:
            self._reading.release()

    def _take(self, message):
        if message.get("op") in ("stop", "pause"):
            self._stop = message
        elif message.get("op") == "checkpoint":
            self._wanted = True
        elif "checkpoint" in message:
            self._answers.append(message["checkpoint"])


def number(value):
    """A metric as float. Numbers of numpy, torch and others that convert are taken; text, NaN and None are not. Infinities
    are: the controller names them, by the step at which they were reported."""
    if isinstance(value, (str, bytes, bool)) or value is None:
        raise ValueError("the metric is %r, not a number" % (value,))
    try:
        value = _wire.as_float(value)
    except (TypeError, ValueError):
        raise ValueError("the metric is a %s, not a number" % type(value).__name__) from None
    if math.isnan(value):
        raise ValueError("the metric is NaN: the training diverged (smaller learning rate?) or divided by zero")
    return value


def whole_number(step):
    """A step as int, of whatever library. ValueError: it is none, or beyond 64 bits."""
    try:
        if isinstance(step, bool):
            raise TypeError
        step = operator.index(step)
    except TypeError:
        raise ValueError("step is %r, not a whole number" % (step,)) from None
    if not -1 << 63 <= step < 1 << 63:
        raise ValueError("step is beyond 64 bits")
    return step


_current = None


def _after_fork():
    """A thread of the parent may have held these."""
    if _current is not None:
        _current._reporting, _current._reading = threading.RLock(), threading.Lock()
        if _current._channel is not None:
            _current._channel._sending = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def set_current(trial):
    global _current
    _current = trial


def current():
    """The running trial; outside of the cluster one whose files are local."""
    global _current
    if _current is None:
        from hops import _local
        _current = _local.Trial()
    return _current


class Reporter:
    """What a training function gets as its parameter `reporter`: that of its trial, also in a thread that goes on when another trial runs
    in the same process. One made by hand is of the trial that runs, and reports to the screen where none does."""

    def __init__(self, trial=None):
        self._trial = trial

    def __reduce__(self):
        return Reporter, ()  # a process that gets it has no channel to the executor

    def broadcast(self, metric, step=None):
        """Report the metric of a step (epoch). Raises EarlyStopException when the trial is to stop."""
        (self._trial or current()).broadcast(metric, step)

    def log(self, message, jupyter=False):
        """Add a line to the trial's log."""
        (self._trial or current()).log(message)
