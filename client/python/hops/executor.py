"""The executor: runs in a container, asks the controller for trials and runs each in a process of its own.

    python3 -m hops.executor

Trials are forked from a warm interpreter (executor mode fork) or started afresh (spawn). Every report is numbered and
kept until the controller has acknowledged it, so a controller that restarts loses none. The protocol, with its rules of
sequence, lease and fencing, is in docs/reference/executor-protocol.md.
"""
import base64
import fcntl
import json
import os
import queue
import secrets
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.parse

from hops import VERSION, _cluster, _events, _http, _run, _signature, _webhdfs, _wire, _zygote

# How long an executor looks for its controller before it gives up.
PATIENCE = 600.0
# How often logs and event files are appended to in the filesystem.
FLUSH_SECONDS = 2.0
MAX_REPORT_EVENTS = 500
# What is printed without an end of the line is kept back up to so many bytes.
MAX_LINE = 16384
# How long the channel of a trial stays open after the end of its process. A daemon that it left may hold the other end for ever.
LEFTOVER_SECONDS = 1.0
# How many trials that have ended may wait for their files to be written.
MAX_UNWRITTEN = 8
# What the imports of a user's module may take.
IMPORT_SECONDS = 120
SLOW_IMPORTS = "the warm interpreter does not start trials: its imports take more than two minutes"


class Stale(Exception):
    """The trial has moved on to another attempt: nothing more of this one counts."""


class Abandoned(Exception):
    """No controller answered for so long that this executor gives up."""


class Unproven(Exception):
    """Something answered that has not shown to be the controller: nothing that it says counts."""


class Refused(Exception):
    """The controller refused a call; status and code say why."""

    def __init__(self, status, detail):
        super().__init__(detail.get("message") or "HTTP %d" % status)
        self.status, self.code, self.detail = status, detail.get("code", ""), detail


class Recorder:
    """Appends every acknowledgement that the trials got to the local file HOPS_RECORD, for those who want to check
    later that nothing acknowledged was lost, and which container had which devices at that moment, so that they see
    whether a device was ever in two of them. Does nothing without that variable."""

    def __init__(self):
        path = os.environ.get("HOPS_RECORD")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else None
        self._gpus = [u for u in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if u]

    def __call__(self, **fact):
        if self._fd is not None:
            fact.update(container=os.environ.get("HOPS_CONTAINER_ID", ""), gpus=self._gpus, time_ms=int(time.time() * 1000))
            os.write(self._fd, _wire.encode(fact) + b"\n")


def _certificate(text):
    """A certificate (DER) from base64; None without one."""
    try:
        return base64.b64decode(text, validate=True) if text else None
    except (TypeError, ValueError):
        raise _cluster.ClusterError("the controller's certificate is not base64: %.60r" % text) from None


class Controller:
    """Calls of the executor protocol. They are retried until the controller, or its successor, answers."""

    def __init__(self):
        # Of an https URL, the certificate (DER) that the controller has: the two change together.
        self.where = os.environ["HOPS_CONTROLLER"].rstrip("/"), _certificate(os.environ.get("HOPS_CONTROLLER_CERTIFICATE"))
        if _cluster.secure(self.where[0]) and self.where[1] is None:
            raise _cluster.ClusterError("%s: the certificate of its server is not known: HOPS_CONTROLLER_CERTIFICATE is not set" % self.where[0])
        self.key = _signature.key(_cluster.secret(), "executor")
        self.container = os.environ.get("HOPS_CONTAINER_ID", "")
        self.instance = secrets.token_hex(8)
        self.fs = _webhdfs.WebHDFS(timeout=20)
        self.setup = None
        self.holding = None
        self._attach = threading.Lock()

    def register(self):
        body = {
            "protocol": 1, "container_id": self.container, "instance": self.instance, "host": socket.gethostname(), "pid": os.getpid(),
            "gpus": [u for u in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if u],
            "python": "%d.%d.%d" % sys.version_info[:3], "sdk": VERSION,
        }
        if self.holding:
            body["holding"] = {"trial": self.holding[0], "attempt": self.holding[1]}
        self.setup = self._retried("POST", lambda: "/v1/executors", body, reattach=False)

    @property
    def id(self):
        return self.setup["executor"]

    def next(self):
        return self._retried("GET", lambda: "/v1/executors/%s/next?wait=30" % self.id, None)

    def trial(self, trial, what, body):
        return self._retried("POST", lambda: "/v1/trials/%s/%d/%s" % (trial.name, trial.attempt, what), body, trial=trial)

    def _retried(self, method, target, body, reattach=True, trial=None):
        backoff, stranger = _http.Backoff(PATIENCE), ""
        while True:
            if trial is not None and trial.stale:
                raise Stale()
            try:
                return self._call(method, target(), body)
            except Refused as e:
                if e.code == "STALE_ATTEMPT":
                    raise Stale(str(e)) from None
                if e.code == "UNKNOWN_EXECUTOR" and reattach:
                    with self._attach:
                        self.register()
                elif e.status != 503 and e.code != "REPEATED":
                    raise
            except ssl.SSLError as e:
                stranger = "; %s: %s" % (self.where[0], e)
                self._look_around()
            except _http.BROKEN:
                self._look_around()
            except Unproven as e:
                stranger = "; " + str(e)
                self._look_around()
            if not backoff.wait():
                raise Abandoned("no controller answered for %.0f s%s" % (PATIENCE, stranger))

    def _call(self, method, target, body):
        data = None if body is None else _wire.encode(body)
        (url, certificate), number = self.where, 0

        def headers():
            nonlocal number
            number = _signature.number()
            host = urllib.parse.urlsplit(url).netloc
            signature = _signature.sign(self.key, method, target, host, self.container, number, data)
            return {"Host": host, "Authorization": signature, "Content-Type": "application/json"}

        answer = _http.request(url, method, target, body=data, headers=headers, timeout=45, certificate=certificate)
        if not _signature.proven(self.key, number, answer.status, answer.body, answer.headers.get(_signature.PROOF)):
            raise Unproven("what answers at %s has not shown to be the controller (HTTP %d: %s)" % (
                url, answer.status, answer.body[:300].decode("utf-8", "replace")))
        if answer.status < 300:
            return answer.document()
        try:
            detail = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            detail = {"message": "HTTP %d" % answer.status}
        raise Refused(answer.status, detail)

    def _look_around(self):
        """Find a restarted controller: it leaves its address in the experiment's directory."""
        directory = os.environ.get("HOPS_EXPERIMENT_DIR") or self.setup and self.setup["directory"]
        if not directory:
            return
        try:
            where = json.loads(self.fs.read(_webhdfs.join(directory, ".controller.json")).decode("utf-8"))
            if where.get("url"):
                self.where = where["url"].rstrip("/"), _certificate(where.get("certificate"))
        except (OSError, ValueError, _cluster.ClusterError):
            pass


class Trial:
    """One attempt: its process, what it reported, what is acknowledged."""

    def __init__(self, controller, order, fs, record):
        self.controller, self.order, self.fs, self.record = controller, order, fs, record
        self.name, self.attempt = order["trial"], order["attempt"]
        self.metric = controller.setup["metric"]
        self.stale = False
        self.op = None  # the stop or pause that was told to the process
        self._wished = False  # a checkpoint was asked for
        self.final = None
        self.status = None  # wait status of the process
        self._changed = threading.Condition()
        self._events = []  # not acknowledged yet
        self._made = self._acked = 0
        self._ended = False  # the process has closed its end of the channel
        self._failed = None  # a call that the controller refused for good
        self._done = False  # the final is sent
        ours, self._theirs = socket.socketpair()
        self._channel = _run.Channel(ours)
        self._write = threading.Lock()
        self._log_read, self._log_write = os.pipe()
        self._gone_read, self._gone_write = os.pipe()  # closed when the process has ended
        self._log = _webhdfs.Appender(fs, order["dirs"]["log"])
        self.log_bytes = 0
        name = "%s.attempt-%d" % (_events.file_name(), self.attempt)
        self._scalars = _webhdfs.Appender(fs, _webhdfs.join(order["dirs"]["tensorboard"], name))
        self._scalars.add(_events.header() + _events.hparams(order["params"], self.name))

    def run(self, runner):
        """Run to the end, and tell the controller how it ended. Returns the final that was sent, or None. What is left to be
        written then, close() writes."""
        readers = [threading.Thread(target=t, daemon=True) for t in (self._read_messages, self._read_log)]
        helpers = [threading.Thread(target=t, daemon=True) for t in (self._report, self._flush_files)]
        self._flusher = helpers[1]
        self.record(kind="start", trial=self.name, attempt=self.attempt, resume=(self.order.get("resume") or {}).get("step", 0),
                    container=self.controller.container)
        self._send(dict(self.order))
        runner.start(self)
        os.close(self._log_write)
        self._theirs.close()
        for t in readers + helpers:
            t.start()
        final = None
        try:
            with self._changed:
                self._changed.wait_for(lambda: self.stale or self._failed or self._ended and not self._events)
            if self.stale or self._failed:
                self.kill_process()
            for t in readers:
                t.join()
            if not self.stale:
                final = self._finish()
        except Stale:
            self.stale = True
        finally:
            if self.stale:
                print("trial %s/%d has moved on; its process is killed" % (self.name, self.attempt), flush=True)
            with self._changed:
                self._done = True
                self._changed.notify_all()
            runner.kill(self)
        return final

    def close(self):
        """Write the rest of the log and the event files. Nobody waits for that: the trial's result is recorded already."""
        self._flusher.join()
        self._flush(last=True)

    def ended(self, status):
        """The process has ended with this wait status, and so has its group."""
        with self._changed:
            self.status = status
            self._changed.notify_all()
        os.close(self._gone_write)
        # What the process has sent is there. A daemon that it left may hold the other end of the channel.
        timer = threading.Timer(LEFTOVER_SECONDS, self._hang_up)
        timer.daemon = True
        timer.start()

    def _hang_up(self):
        try:
            self._channel.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def descriptors(self):
        return [self._theirs.fileno(), self._log_write]

    def _send(self, message):
        with self._write:
            try:
                self._channel.send(message)
            except OSError:
                pass  # the process has ended; its final says how

    def _read_messages(self):
        while True:
            try:
                message = self._channel.receive()
                if message is not None:
                    self._take_message(message)
            except (EOFError, OSError):
                with self._changed:
                    self._ended = True
                    self._changed.notify_all()
                return
            except (ValueError, TypeError, KeyError, RecursionError) as e:  # no value ends the executor
                with self._changed:
                    self._failed = self._failed or {"type": "ProtocolError", "message": "a message of the trial's process cannot be read: %s" % e}
                    self._changed.notify_all()

    def _take_message(self, message):
        if "metric" in message:
            with self._changed:
                self._made += 1
                self._events.append({"seq": self._made, "step": message["step"], "t": int(message["time"] * 1000),
                                     "metrics": {self.metric: message["metric"]}})
                self._changed.notify_all()
            self._scalars.add(_events.scalar(self.metric, message["metric"], message["step"], message["time"]))
        elif "log" in message:
            self._take_log(_wire.text(message["log"]).encode("utf-8") + b"\n")
        elif "checkpoint" in message:
            self._send({"checkpoint": self._commit(message["checkpoint"])})
        elif "final" in message:
            self.final = message["final"]

    def _commit(self, checkpoint):
        # A checkpoint of step N follows the report of step N.
        with self._changed:
            self._changed.wait_for(lambda: not self._events or self.stale or self._failed)
        body = {"step": checkpoint["step"], "uri": checkpoint["uri"], "files": checkpoint["files"]}
        if checkpoint.get("metric") is not None:
            body["metric"] = checkpoint["metric"]
        try:
            answer = self.controller.trial(self, "checkpoint", body)
        except Stale:
            self.stale = True
            with self._changed:
                self._changed.notify_all()
            return {"error": "trial %s/%d was superseded" % (self.name, self.attempt)}
        except Refused as e:
            return {"error": str(e), "code": e.code}
        self.record(kind="checkpoint", trial=self.name, attempt=self.attempt, step=checkpoint["step"], uri=checkpoint["uri"],
                    files=checkpoint["files"])
        self._obey(answer)
        return {"keep": answer.get("keep")}

    def _report(self):
        """Send events as they come, and a sign of life every report_ms, until the final is sent."""
        pause = self.controller.setup["report_ms"] / 1000.0
        kill_at = None
        while True:
            with self._changed:
                if not self._events:
                    self._changed.wait_for(lambda: self._events or self._done, pause)
                if self._done or self.stale:
                    return
                events = self._events[:MAX_REPORT_EVENTS]
            try:
                answer = self.controller.trial(self, "report", {"events": events, "log_bytes": self.log_bytes})
            except Stale:
                with self._changed:
                    self.stale = True
                    self._changed.notify_all()
                return
            except Refused as e:
                with self._changed:
                    self._failed = {"type": e.code or "ProtocolError", "message": str(e)}
                    self._events = []
                    self._changed.notify_all()
                return
            with self._changed:
                done = [e for e in self._events if e["seq"] <= answer["ack"]]
                self._events = self._events[len(done):]
                self._acked = max(self._acked, answer["ack"])
                self._changed.notify_all()
            for e in done:
                self.record(kind="metric", trial=self.name, attempt=self.attempt, step=e["step"], value=e["metrics"][self.metric])
            self._obey(answer)
            if self.op and kill_at is None:
                kill_at = time.monotonic() + (self.op.get("grace_ms") or self.controller.setup["stop_grace_ms"]) / 1000.0
            if kill_at is not None and time.monotonic() > kill_at and not self._ended:
                self.kill_process()

    def _obey(self, answer):
        op = answer.get("op")
        if op in ("stop", "pause") and not self.op:
            self.op = answer
            self._send({"op": op, "reason": answer.get("reason", "")})
        elif op == "checkpoint" and not self._wished:
            self._wished = True
            self._send({"op": op, "reason": answer.get("reason", "")})

    def kill_process(self):
        pid = getattr(self, "pid", None)
        if pid and self.status is None:
            for kill in (os.killpg, os.kill):
                try:
                    kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    def _finish(self):
        deadline = time.monotonic() + 10
        with self._changed:
            while self.status is None and time.monotonic() < deadline:
                self._changed.wait(0.2)
        # What the controller has refused it will not get: a final that counts it would be refused as well.
        body = dict(self._conclusion(), seq=self._acked if self._failed else self._made, log_bytes=self.log_bytes)
        answer = self.controller.trial(self, "final", body)
        print("trial %s/%d: %s %s" % (self.name, self.attempt, answer["state"], answer.get("reason", "")), flush=True)
        return body

    def _conclusion(self):
        final = self.final
        stopped = self.op and {"stop": "STOPPED", "pause": "PAUSED"}[self.op["op"]]
        if self._failed:
            return {"status": "FAILED", "error": self._failed}
        if final is None:
            if stopped:
                return {"status": stopped, "error": {"type": "StopTimeout", "message": "told to stop, the function went on and was killed",
                                                     "remedy": "call reporter.broadcast more often"}}
            return {"status": "FAILED", "error": {"type": "ProcessDied", "message": "the trial's process ended with %s" % _how(self.status),
                                                  "remedy": "look at the end of its log"}}
        if "error" in final:
            return {"status": "INVALID" if final.get("invalid") else "FAILED", "error": final["error"]}
        if final.get("stopped"):
            return {"status": stopped or "STOPPED"}
        body = {"status": "COMPLETED"}
        if final.get("metric") is not None:
            body["metric"] = final["metric"]
        if final.get("outputs"):
            body["outputs"] = final["outputs"]
        return body

    def _take_log(self, data):
        self._log.add(data)
        self.log_bytes += len(data)

    def _read_log(self):
        """Take what the process prints, by whole lines, so that the reporter's lines do not fall into them. After its end only
        the bytes that are there are taken: a daemon that it left may print for ever."""
        rest, left = b"", None
        while left != 0:
            if left is None and self._gone_read in select.select([self._log_read, self._gone_read], [], [])[0]:
                left = struct.unpack("i", fcntl.ioctl(self._log_read, termios.FIONREAD, bytes(4)))[0]
                continue
            data = os.read(self._log_read, 65536 if left is None else min(left, 65536))
            if not data:
                break
            if left is not None:
                left -= len(data)
            rest += data
            end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
            if not end and len(rest) > MAX_LINE:
                end = len(rest)
            if end:
                self._take_log(rest[:end])
                rest = rest[end:]
        os.close(self._log_read)
        os.close(self._gone_read)
        if rest:
            self._take_log(rest)

    def _flush_files(self):
        while not self._ended:
            with self._changed:
                self._changed.wait_for(lambda: self._ended, FLUSH_SECONDS)
            if not self._ended:
                self._flush()

    def _flush(self, last=False):
        for file in (self._log, self._scalars):
            for _ in range(3 if last else 1):
                if self.stale:
                    return
                try:
                    file.flush(last)
                    break
                except (OSError, _cluster.ClusterError) as e:
                    print("trial %s/%d: %s: %s" % (self.name, self.attempt, file.path, e), flush=True)


class Writer:
    """Writes the files of trials that have ended, one after the other, while the next ones run. alive is called every few
    moments while that has to be waited for."""

    def __init__(self, alive, seconds):
        self._alive, self._seconds = alive, seconds
        self._trials = queue.Queue(MAX_UNWRITTEN)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def add(self, trial):
        """Waits while too many trials are unwritten."""
        while True:
            try:
                return self._trials.put(trial, timeout=self._seconds)
            except queue.Full:
                self._alive()

    def close(self):
        """Returns when all is written, or could not be."""
        self.add(None)
        self._thread.join(self._seconds)
        while self._thread.is_alive():
            self._alive()
            self._thread.join(self._seconds)

    def _write(self):
        while True:
            trial = self._trials.get()
            if trial is None:
                return
            trial.close()


class ForkRunner:
    """Forks trials from a warm interpreter, which is a process of its own: this one has threads."""

    def __init__(self, setup):
        self._ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        self._process = subprocess.Popen([sys.executable, "-m", "hops._zygote", str(theirs.fileno())], stdin=subprocess.PIPE,
                                         close_fds=True, pass_fds=[theirs.fileno()])
        theirs.close()
        self._process.stdin.write(json.dumps(setup).encode("utf-8"))
        self._process.stdin.close()
        self._trials, self._started, self._count = {}, {}, 0
        self._setup, self._forks, self._spawn = setup, False, None
        self._lock = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, trial):
        with self._lock:
            if not self._lock.wait_for(lambda: self._forks or self._spawn, IMPORT_SECONDS):
                sys.exit(SLOW_IMPORTS)
            if self._spawn:
                return self._spawn.start(trial)
            self._count += 1
            number = self._count
            self._trials[number] = trial
        socket.send_fds(self._ours, [json.dumps({"id": number}).encode("utf-8") + b"\n"], trial.descriptors())
        with self._lock:
            if not self._lock.wait_for(lambda: number in self._started, IMPORT_SECONDS):
                sys.exit(SLOW_IMPORTS)
            trial.pid = self._started.pop(number)

    def kill(self, trial):
        trial.kill_process()

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
                if "spawn" in message or "fork" in message:
                    self._lock.notify_all()
                    continue
                if "pid" in message:
                    self._started[message["id"]] = message["pid"]
                    self._lock.notify_all()
                    continue
                trial = self._trials.pop(message["id"])
            trial.ended(message["status"])


class SpawnRunner:
    """Starts an interpreter per trial, for frameworks that break after a fork."""

    def __init__(self, setup):
        self._setup = os.path.abspath("setup-%d.json" % os.getpid())
        with open(self._setup, "w") as f:
            json.dump(setup, f)

    def start(self, trial):
        sock, output = trial.descriptors()
        process = subprocess.Popen([sys.executable, "-m", "hops._trial", str(sock), self._setup], stdout=output, stderr=output,
                                   pass_fds=[sock], start_new_session=True)
        trial.pid = process.pid
        threading.Thread(target=self._wait, args=(trial, process), daemon=True).start()

    def _wait(self, trial, process):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _zygote.end_group(process.pid)
        trial.ended(process.wait())

    def kill(self, trial):
        trial.kill_process()


def _how(status):
    if status is None:
        return "no status"
    if status < 0 or os.WIFSIGNALED(status):
        number = -status if status < 0 else os.WTERMSIG(status)
        return "signal %d (%s)" % (number, signal.Signals(number).name) + (", as when memory runs out" if number == signal.SIGKILL else "")
    return "status %d" % (os.WEXITSTATUS(status) if status > 255 else status)


def _end_with_thread(failure):
    """A thread that fails would leave the others waiting for ever: the executor ends, and its container is replaced."""
    if issubclass(failure.exc_type, Abandoned):
        print("executor: %s" % failure.exc_value, file=sys.stderr, flush=True)
    else:
        threading.__excepthook__(failure)
    os._exit(1)


def main():
    threading.excepthook = _end_with_thread
    try:
        _work()
    except Refused as refusal:
        sys.exit("the controller refused: %s" % refusal)
    except (Abandoned, _cluster.ClusterError) as problem:
        sys.exit("executor: %s" % problem)


def _work():
    for name in ("HOPS_CONTROLLER", "HOPS_TOKEN"):
        if not os.environ.get(name):
            sys.exit("hops.executor: %s is not set: executors are started by an experiment's controller" % name)
    controller = Controller()
    controller.register()
    setup, record = controller.setup, Recorder()
    work = os.environ.get("HOPS_WORK_DIR") or os.getcwd()
    os.chdir(work)
    if setup.get("code_dir"):
        setup = dict(setup, code_dir=os.path.join(work, setup["code_dir"]))
    os.environ["ML_ID"] = setup["experiment"]
    print("executor %s of %s on %s" % (setup["executor"], setup["experiment"], urllib.parse.urlsplit(controller.where[0]).netloc), flush=True)
    runner = (SpawnRunner if setup["mode"] == "spawn" else ForkRunner)(setup)
    # Registering again says that this executor lives: who is silent loses its lease, and with it the files.
    fs, writer = _webhdfs.WebHDFS(), Writer(controller.register, setup["report_ms"] / 1000.0)
    last = None  # the trial that ended here last, with its final, in case the answer to it was lost
    while True:
        order = controller.next()
        if order["action"] == "trial":
            if last and (last[0].name, last[0].attempt) == (order["trial"]["trial"], order["trial"]["attempt"]):
                try:
                    controller.trial(last[0], "final", last[1])
                except Stale:
                    pass
                continue
            trial = Trial(controller, order["trial"], fs, record)
            controller.holding = (trial.name, trial.attempt)
            final = trial.run(runner)
            controller.holding = None
            writer.add(trial)
            last = final and (trial, final)
        elif order["action"] in ("drain", "stop"):
            print("executor %s: %s %s" % (controller.id, order["action"], order.get("reason", "")), flush=True)
            writer.close()
            return


if __name__ == "__main__":
    main()
