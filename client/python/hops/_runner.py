"""The processes in which an executor runs trials: forked from a warm interpreter before the trial is known (fork), started afresh
(spawn), or one that runs one trial after the other (inproc).

take(slot) gives a Child that waits for its order on its channel, prepare(slot) makes the next one ready where that saves time.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from hops import _gang, _run, _zygote

# What the imports of a user's module may take.
IMPORT_SECONDS = 120
SLOW_IMPORTS = "the warm interpreter does not start trials: its imports take more than two minutes"


class Child:
    """A process for one trial, the channel to it, and the pipe of what it prints. log_read and gone_read belong to who takes the
    child; gone_read is closed at the other end when the process has ended."""

    def __init__(self):
        ours, self._theirs = socket.socketpair()
        self.channel = _run.Channel(ours)
        self.log_read, self._log_write = os.pipe()
        self.gone_read, self._gone_write = os.pipe()
        self.pid = None
        self.status = None  # as os.wait gives it
        self.killed = False  # its process, which may not have ended yet
        self._lock = threading.Lock()
        self._watcher = None

    def descriptors(self):
        return [self._theirs.fileno(), self._log_write]

    def given(self):
        """The process has the descriptors: what is kept of them here would hide its end."""
        self._theirs.close()
        os.close(self._log_write)

    def watch(self, watcher):
        """Have watcher(status) called at the end of the process, which may have been."""
        with self._lock:
            self._watcher = watcher
            status = self.status
        if status is not None:
            watcher(status)

    def ended(self, status):
        """The process has ended with this wait status, and so has its group."""
        with self._lock:
            self.status = status
            watcher = self._watcher
        os.close(self._gone_write)
        if watcher:
            watcher(status)

    def kill(self):
        """Kill the process and its group, if it has not ended."""
        if self.pid and self.status is None:
            self.killed = True
            for kill in (os.killpg, os.kill):
                try:
                    kill(self.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    def discard(self):
        """Nobody takes it."""
        self.kill()
        self.channel.sock.close()
        os.close(self.log_read)
        os.close(self.gone_read)


class Runner:
    """The processes of an executor in the mode of its set-up document."""

    def __init__(self, setup):
        self._setup = setup
        self._usual = {"spawn": SpawnRunner, "inproc": ReuseRunner}.get(setup["mode"], ForkRunner)(setup)
        self._spawn = None
        self._lock = threading.Lock()

    def ready(self, slot, framework=None):
        """A process for a trial that waits already, or None."""
        if framework in _gang.UNFORKABLE or not isinstance(self._usual, ForkRunner):
            return None
        return self._usual.ready(slot)

    def take(self, slot, framework=None, wanted=lambda: True):
        """A process for a trial, None if it is not wanted any more while the imports take their time. One of a gang whose framework breaks
        after a fork is spawned."""
        if framework not in _gang.UNFORKABLE or self._setup["mode"] != "fork":
            return self._usual.take(slot, wanted)
        with self._lock:
            if self._spawn is None:
                print("members of %s gangs are spawned: the framework does not survive a fork" % framework, flush=True)
                self._spawn = SpawnRunner(self._setup)
        return self._spawn.take(slot)

    def prepare(self, slot):
        if self._spawn is None:
            self._usual.prepare(slot)


class ForkRunner:
    """Forks trials from a warm interpreter, which is a process of its own: this one has threads."""

    def __init__(self, setup):
        self._process, self._ours = _start_zygote(setup)
        self._children, self._count = {}, 0
        self._spare = {}  # by slot
        self._deadline = time.monotonic() + IMPORT_SECONDS
        self._setup, self._forks, self._spawn = setup, False, None
        self._lock = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def ready(self, slot):
        with self._lock:
            child = self._spare.get(slot)
            if child is None or not child.pid or child.status is not None:
                return None
            return self._spare.pop(slot)

    def take(self, slot, wanted):
        with self._lock:
            while not self._lock.wait_for(lambda: self._forks or self._spawn, 0.1):
                if not wanted():
                    return None
                if time.monotonic() > self._deadline:
                    sys.exit(SLOW_IMPORTS)
            child = self._spare.pop(slot, None)
        if self._spawn:
            return self._spawn.take(slot, wanted)
        if child is not None and child.status is not None:
            child.discard()
            child = None
        child = child or self._fork()
        with self._lock:
            if not self._lock.wait_for(lambda: child.pid, IMPORT_SECONDS):
                sys.exit(SLOW_IMPORTS)
        return child

    def prepare(self, slot):
        """Fork the child that the slot takes next. It waits for its order while the trial before it runs."""
        with self._lock:
            if self._spawn or slot in self._spare:
                return
        child = self._fork()
        with self._lock:
            self._spare[slot] = child

    def _fork(self):
        child = Child()
        with self._lock:
            self._count += 1
            number = self._count
            self._children[number] = child
            socket.send_fds(self._ours, [json.dumps({"id": number}).encode("utf-8") + b"\n"], child.descriptors())
        child.given()
        return child

    def _listen(self):
        channel = _run.Channel(self._ours)
        while True:
            try:
                message = channel.receive()
            except (EOFError, OSError):
                if self._spawn:
                    return
                # Without the warm interpreter there is nothing to do; the container is replaced.
                print("the warm interpreter has died", flush=True)
                os._exit(1)
            with self._lock:
                if "spawn" in message:
                    print("trials are spawned, not forked: %s; executor_mode: spawn says so from the beginning" % message["spawn"], flush=True)
                    self._spawn = SpawnRunner(self._setup)
                self._forks = self._forks or "fork" in message
                if "pid" in message:
                    self._children[message["id"]].pid = message["pid"]
                self._lock.notify_all()
                if "status" not in message:
                    continue
                child = self._children.pop(message["id"])
            child.ended(message["status"])


class SpawnRunner:
    """Starts an interpreter per trial, for frameworks that break after a fork."""

    def __init__(self, setup):
        self._setup = os.path.abspath("setup-%d.json" % os.getpid())
        with open(self._setup, "w") as f:
            json.dump(setup, f)

    def take(self, slot, wanted=None):
        child = Child()
        sock, output = child.descriptors()
        process = subprocess.Popen([sys.executable, "-m", "hops._trial", str(sock), self._setup], stdout=output, stderr=output,
                                   pass_fds=[sock], start_new_session=True)
        child.pid = process.pid
        child.given()
        threading.Thread(target=self._wait, args=(child, process), daemon=True).start()
        return child

    def prepare(self, slot):
        """Nothing: a second interpreter with the imports of a framework may need the memory that the trial needs."""

    def _wait(self, child, process):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _zygote.end_group(process.pid)
        child.ended(_wait_status(process.wait()))


class ReuseRunner:
    """One process per slot runs one trial after the other. It is replaced when it has died."""

    def __init__(self, setup):
        self._setup, self._processes = setup, {}

    def take(self, slot, wanted=None):
        process = self._processes.get(slot)
        if process is None or process.dead or process.last.killed:
            process = self._processes[slot] = _Reused(self._setup)
        return process.give(Child())

    def prepare(self, slot):
        pass


class _Reused:
    def __init__(self, setup):
        self._process, self._ours = _start_zygote(setup, "inproc", start_new_session=True)
        self.dead = False
        self._child = None
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, child):
        self.last = child
        with self._lock:
            self._child, child.pid = child, self._process.pid
        try:
            socket.send_fds(self._ours, [b"{}\n"], child.descriptors())
        except OSError:
            pass  # it has died meanwhile: the child's status says how
        child.given()
        with self._lock:
            if self.dead and self._child is child:
                self._child = None
                child.ended(_wait_status(self._process.returncode))
        return child

    def _listen(self):
        channel = _run.Channel(self._ours)
        while True:
            try:
                message = channel.receive()
            except (EOFError, OSError):
                _zygote.end_group(self._process.pid)
                self._process.wait()
                with self._lock:
                    self.dead, child, self._child = True, self._child, None
                if child:
                    child.ended(_wait_status(self._process.returncode))
                self._ours.close()
                return
            with self._lock:
                child, self._child = self._child, None
            child.ended(message["status"])


def _wait_status(code):
    """The wait status of a process whose return code, in the words of subprocess, is this."""
    return -code if code < 0 else code << 8


def _start_zygote(setup, *arguments, **how):
    """(process, socket) of a warm interpreter."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-m", "hops._zygote", str(theirs.fileno())] + list(arguments), stdin=subprocess.PIPE,
                               close_fds=True, pass_fds=[theirs.fileno()], **how)
    theirs.close()
    process.stdin.write(json.dumps(setup).encode("utf-8"))
    process.stdin.close()
    return process, ours
