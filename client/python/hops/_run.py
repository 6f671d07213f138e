"""The trial that this process runs, as seen by user code: reporter, checkpoint, tensorboard ask here.

A trial process talks to its executor over one socket, a JSON object a line. It sends
    {"metric": value, "step": n, "time": seconds}   {"log": text}   {"checkpoint": {...}}   {"final": {...}}
and receives {"op": "stop", "reason": text} and the answers {"checkpoint": {...}} in the order of the requests.
"""
import json
import math
import os
import select
import time


class EarlyStopException(Exception):
    """Raised by reporter.broadcast when the trial is to stop. metric is the one reported last."""

    def __init__(self, metric):
        super().__init__("the trial was stopped early")
        self.metric = metric


class InvalidParams(Exception):
    """Raised by a training function for parameters that make no sense together: the trial is not tried again."""


class Channel:
    """JSON lines over a socket, for one thread."""

    def __init__(self, sock):
        self.sock, self._in = sock, b""

    def send(self, message):
        self.sock.sendall(json.dumps(message).encode("utf-8") + b"\n")

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
        self.budget = order.get("budget") or {}
        self.seed = order.get("seed", 0)
        self.checkpoints = order["dirs"]["checkpoints"]
        self.logdir = order["dirs"]["tensorboard"]
        resume = order.get("resume") or {}
        self.resume_from, self.resume_step = resume.get("uri", ""), resume.get("step", 0)
        self.fs = fs
        self._channel = channel
        self._last_step = None
        self._last_metric = None
        self._stop = None

    def broadcast(self, metric, step=None):
        """Report the metric at a step; steps count up by themselves when none is given. EarlyStopException: stop now."""
        value = number(metric)
        if step is None:
            step = self.resume_step + 1 if self._last_step is None else self._last_step + 1
        if isinstance(step, bool) or not isinstance(step, int):
            raise ValueError("step is %r, not a whole number" % (step,))
        if self._last_step is not None and step < self._last_step:
            raise ValueError("step %d was reported after step %d: steps must not go backwards" % (step, self._last_step))
        self._last_step, self._last_metric = step, value
        self._channel.send({"metric": value, "step": step, "time": time.time()})
        self._listen(0)
        if self._stop is not None:
            raise EarlyStopException(value)

    def log(self, message):
        self._channel.send({"log": str(message)})

    def commit_checkpoint(self, step, uri, files, metric):
        """Have the controller record a checkpoint that lies in the filesystem. Returns when it has."""
        self._channel.send({"checkpoint": {"step": step, "uri": uri, "files": files, "metric": None if metric is None else number(metric)}})
        while True:
            answer = self._channel.receive()
            if "checkpoint" in answer:
                if answer["checkpoint"].get("error"):
                    raise OSError(answer["checkpoint"]["error"])
                return
            self._take(answer)

    def finish(self, final):
        self._channel.send({"final": final})

    def _listen(self, timeout):
        while True:
            message = self._channel.receive(timeout)
            if message is None:
                return
            self._take(message)

    def _take(self, message):
        if message.get("op") in ("stop", "pause"):
            self._stop = message


def number(value):
    """A metric as float. Numbers of numpy, torch and others that convert are taken; text, NaN and None are not."""
    if isinstance(value, (str, bytes, bool)) or value is None:
        raise ValueError("the metric is %r, not a number" % (value,))
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise ValueError("the metric is a %s, not a number" % type(value).__name__) from None
    if math.isnan(value):
        raise ValueError("the metric is NaN: the training diverged (smaller learning rate?) or divided by zero")
    return value


_current = None


def set_current(trial):
    global _current
    _current = trial


def current(what):
    """The running trial. RuntimeError outside of one."""
    if _current is None:
        raise RuntimeError("%s works inside a running trial only%s" % (what, "" if os.environ.get("HOPS_CONTAINER_ID") else
                                                                      "; this program was started by hand"))
    return _current


def running():
    return _current is not None


class Reporter:
    """What a training function gets as its parameter `reporter`."""

    def broadcast(self, metric, step=None):
        """Report the metric of a step (epoch). Raises EarlyStopException when the trial is to stop."""
        current("reporter.broadcast").broadcast(metric, step)

    def log(self, message, jupyter=False):
        """Add a line to the trial's log."""
        current("reporter.log").log(message)
