"""The executor: runs in a container, asks the controller for trials and runs each in a process of its own.

    python3 -m hops.executor

An executor has one slot or several, each of which runs one trial at a time: forked from a warm interpreter (executor mode fork),
started afresh (spawn), or in a process that runs one after the other (inproc). A trial may be one member of a gang. Every report is
numbered and kept until the controller has acknowledged it, so a controller that restarts loses none. The protocol, with its
rules of sequence, lease and fencing, is in docs/reference/executor-protocol.md.
"""
import base64
import fcntl
import json
import os
import queue
import re
import secrets
import select
import signal
import socket
import ssl
import struct
import sys
import termios
import threading
import time
import urllib.parse

from hops import VERSION, _cluster, _environment, _events, _gang, _http, _runner, _signature, _webhdfs, _wire

# How long an executor looks for its controller before it gives up.
PATIENCE = 600.0
# How often logs and event files are appended to in the filesystem.
FLUSH_SECONDS = 2.0
MAX_REPORT_EVENTS = 500
# Reports that wait to be sent. A function that reports faster than they are recorded waits for that.
MAX_UNSENT = 20_000
# What is printed without an end of the line is kept back up to so many bytes.
MAX_LINE = 16384
# How long the channel of a trial stays open after the end of its process. A daemon that it left may hold the other end for ever.
LEFTOVER_SECONDS = 1.0
# What a process that has said how its function ended has for its own end.
LAST_SECONDS = 10.0
# How long an executor that has nothing left to do waits until the environment of the experiment is recorded.
RECORD_SECONDS = 5.0
# How many trials that have ended may wait for their files to be written.
MAX_UNWRITTEN = 8
# How often it is looked whether the processes of a member of a gang do anything, and what share of a core is next to nothing.
IDLE_LOOK_SECONDS, IDLE_SHARE = 10.0, 0.01
# How long a member of a gang that saw a collective fail waits to hear that another one was the cause, in intervals of reports.
CONSEQUENCE_REPORTS = 1.5


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
        self.holding = {}  # by slot: the attempt that it works on
        self._attach = threading.Lock()

    def register(self):
        body = {
            "protocol": 1, "container_id": self.container, "instance": self.instance, "host": socket.gethostname(), "pid": os.getpid(),
            "gpus": [u for u in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if u],
            "python": "%d.%d.%d" % sys.version_info[:3], "sdk": VERSION,
        }
        held = dict(self.holding)
        if 0 in held:
            body["holding"] = held.pop(0)
        if held:
            body["held"] = [dict(h, slot=slot) for slot, h in sorted(held.items())]
        self.setup = self._retried("POST", lambda: "/v1/executors", body, reattach=False)

    @property
    def id(self):
        return self.setup["executor"]

    def next(self, slot):
        return self._retried("GET", lambda: "/v1/executors/%s/next?wait=30%s" % (self.id, "&slot=%d" % slot if slot else ""), None)

    def trial(self, trial, what, body):
        return self._retried("POST", lambda: "/v1/trials/%s/%d/%s" % (trial.name, trial.attempt, what), body, trial=trial)

    def _retried(self, method, target, body, reattach=True, trial=None):
        backoff, stranger = _http.Backoff(PATIENCE), ""
        while True:
            setup = self.setup
            if trial is not None and trial.stale:
                raise Stale()
            try:
                return self._call(method, target(), body)
            except Refused as e:
                if e.code == "STALE_ATTEMPT":
                    raise Stale(str(e)) from None
                if e.code == "UNKNOWN_EXECUTOR" and reattach:
                    with self._attach:
                        if self.setup is setup:  # no other slot has done it meanwhile
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

    def __init__(self, controller, order, fs, record, threads, slot=0):
        self.controller, self.order, self.fs, self.record, self._threads, self.slot = controller, order, fs, record, threads, slot
        self.name, self.attempt = order["trial"], order["attempt"]
        self.gang = order.get("gang")
        self.rank = self.gang["rank"] if self.gang else 0
        self.held = {"trial": self.name, "attempt": self.attempt}
        if self.rank:
            self.held["rank"] = self.rank
        self.metric = controller.setup["metric"]
        self.stale = False
        self.op = None  # the stop or pause that was told to the process
        self._wished = False  # a checkpoint was asked for
        self.final = None
        self._child = self._channel = None
        self._early = []  # for the process, before it has its order
        self._reporter = None  # the process that reports
        self._slowed = False  # the log says that it reports too fast
        self._serves = False  # the process does not call the function, and ends when it is killed
        self._changed = threading.Condition()
        self._events = []  # not acknowledged yet
        self._made = self._acked = 0
        self._ended = False  # the process has closed its end of the channel
        self._failed = None  # a call that the controller refused for good
        self._finishing = False  # the final is being sent
        self._done = False  # the final is sent
        self._write = threading.Lock()
        self._log = _webhdfs.Appender(fs, order["dirs"]["log"])
        self.log_bytes = 0
        self._log_lock = threading.Lock()  # of the pipe of what the process prints, and of what follows
        self._log_taken = 0  # bytes read from it
        self._log_over = False  # it is closed
        name = "%s.attempt-%d" % (_events.file_name(), self.attempt)
        if self.rank:  # TensorBoard shows the files of one directory as one run
            name = "rank-%d/%s" % (self.rank, name)
        self._scalars = _webhdfs.Appender(fs, _webhdfs.join(order["dirs"]["tensorboard"], name))
        self._flusher = None

    def __str__(self):
        return "trial %s/%d%s" % (self.name, self.attempt, " rank %d" % self.rank if self.gang else "")

    def run(self, runner):
        """Run to the end, and tell the controller how it ended. Returns the final that was sent, or None, and what Next answers
        if the controller has said that too. What is left to be written then, close() writes."""
        readers, ports, answer, final = [], None, {}, None
        self.record(kind="start", trial=self.name, attempt=self.attempt, resume=(self.order.get("resume") or {}).get("step", 0),
                    container=self.controller.container, **({"rank": self.rank} if self.gang else {}))
        try:
            if self.gang:
                ports = _gang.reserve(self.gang)
                self._ended = not self._join(ports)
            if not self._ended:
                child = runner.ready(self.slot, self.gang and self.gang["framework"])
                if not child:  # the imports of a framework may take longer than the lease
                    self._threads.start(self._report)
                    child = runner.take(self.slot, self.gang and self.gang["framework"], lambda: not (self.stale or self._failed or self.op))
                    if child:
                        self._start(child, ports)
                else:
                    self._start(child, ports)
                    self._threads.start(self._report)
                self._ended = not child  # it was stopped, or lost, before there was a process
            if not self._ended:
                self._scalars.add(_events.header() + (b"" if self.rank else _events.hparams(self.order["params"], self.name)))
                readers = [self._threads.start(self._read_messages), self._threads.start(self._read_log)]
                self._flusher = self._threads.start(self._flush_files)
                runner.prepare(self.slot)
            with self._changed:
                self._changed.wait_for(lambda: self.stale or self._failed or (self._ended or self.final) and not self._events)
            if self.stale or self._failed:
                self.kill_process()
            if not self.final or self._failed:
                self._wait(readers)
            if not self.stale:
                final, answer = self._finish()
        except Stale:
            self.stale = True
        finally:
            if self.stale:
                print("%s has moved on; its process is killed" % self, flush=True)
                self.kill_process()
            with self._changed:
                self._done = True
                self._changed.notify_all()
            # The next trial has the devices to itself: the process has ended before it begins.
            self._wait(readers)
            if ports:
                ports.close()
        return final, answer.get("next")

    def _wait(self, readers):
        """Wait for the end of the process. One that has said how the function ended, or has closed its channel, has nothing left to do:
        what keeps it (a disk that does not answer, a thread that holds the interpreter) does not keep the slot."""
        with self._changed:
            ended = not self._child or self._changed.wait_for(lambda: self._child.status is not None, LAST_SECONDS)
        if not ended:
            self.kill_process()
        for done in readers:
            done.wait()

    def _join(self, ports):
        """Meet the other members. False: the trial is over before it began."""
        host = _gang.address(self.controller.where[0])
        body = {"rank": self.rank, "host": host, "ports": ports.numbers}
        found = _gang.interface(host)
        if found:
            body["interface"] = found
        # Each call renews the lease, whose third is waited for.
        wait = max(1, min(30, self.controller.setup["lease_ms"] // 3000))
        while True:
            try:
                answer = self.controller.trial(self, "join?wait=%d" % wait, body)
            except Refused as e:
                self._failed = {"type": e.code or "ProtocolError", "message": str(e)}
                return False
            if answer.get("op") in ("stop", "pause"):
                self.op = answer
                return False
            if answer.get("ready"):
                self.order = dict(self.order, env=dict(self.order.get("env") or {}, **answer.get("env") or {}), files=answer.get("files") or {})
                return True

    def _start(self, child, ports):
        self._log_read, self._gone_read = child.log_read, child.gone_read
        if ports:
            ports.starting()
        order = dict(self.order, env=dict(self.order.get("env") or {}, HOPS_SLOT=str(self.slot)))
        with self._write:
            self._channel = child.channel
            for message in [order] + self._early:
                self._put(message)
        self._child = child
        child.watch(self._process_ended)

    def close(self):
        """Write the rest of the log and the event files. Nobody waits for that: the trial's result is recorded already."""
        if self._flusher:
            self._flusher.wait()
        self._flush(last=True)

    def _process_ended(self, status):
        with self._changed:
            self._changed.notify_all()
        # What the process has sent is there. A daemon that it left may hold the other end of the channel.
        timer = threading.Timer(LEFTOVER_SECONDS, self._hang_up)
        timer.daemon = True
        timer.start()

    def _hang_up(self):
        try:
            self._channel.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _call(self, what, body):
        """A call about this attempt, by its member."""
        return self.controller.trial(self, what, dict(body, rank=self.rank) if self.rank else body)

    def _send(self, message):
        with self._write:
            if self._channel is None:  # the process does not have its order yet
                self._early.append(message)
            else:
                self._put(message)

    def _put(self, message):
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
            # What a thread or a child of the function reports behind its end is not the trial's: the final counts the reports.
            if self.final is not None or not self._from_one_process(message["pid"]):
                return
            self._slow_down()
            with self._changed:
                self._made += 1
                self._events.append({"seq": self._made, "step": message["step"], "t": int(message["time"] * 1000),
                                     "metrics": {self.metric: message["metric"]}})
                self._changed.notify_all()
            self._scalars.add(_events.scalar(self.metric, message["metric"], message["step"], message["time"]))
        elif "log" in message:
            self._take_log(_wire.text(message["log"]).encode("utf-8") + b"\n")
        elif "checkpoint" in message:
            if self.final is not None:
                self._send({"checkpoint": {"error": "the function of %s has ended" % self, "step": message["checkpoint"]["step"]}})
                return
            if not self._from_one_process(message["checkpoint"]["pid"]):
                return
            self._send({"checkpoint": dict(self._commit(message["checkpoint"]), step=message["checkpoint"]["step"])})
        elif "serving" in message:
            self._serves = True
        elif "final" in message:
            self.final = message["final"]

    def _from_one_process(self, pid):
        """Whether a report or a checkpoint is of the process from which the first one came. The steps of a function that has forked, and
        reports in both processes, make no curve: it fails."""
        if self._reporter is None:
            self._reporter = pid
        if pid == self._reporter:
            return True
        with self._changed:
            self._failed = self._failed or {
                "type": "ReportFromFork", "message": "process %d reported, and process %d, which one of them has forked, too" % (self._reporter, pid),
                "remedy": "report and save checkpoints in one process only, and end the other with os._exit"}
            self._changed.notify_all()
        return False

    def _slow_down(self):
        """Wait while too many reports are unsent: the pipe from the process fills, and the function waits in broadcast."""
        with self._changed:
            full = lambda: len(self._events) >= MAX_UNSENT and not (self.stale or self._failed or self._done)  # noqa: E731
            first, self._slowed = full() and not self._slowed, self._slowed or full()
        if first:
            self._take_log(("[trial %s reports faster than its reports are recorded, and waits for that; report once an epoch]\n" % self.name).encode("ascii"))
        with self._changed:
            self._changed.wait_for(lambda: not full())

    def _commit(self, checkpoint):
        # A checkpoint of step N follows the report of step N.
        with self._changed:
            self._changed.wait_for(lambda: not self._events or self.stale or self._failed)
        body = {"step": checkpoint["step"], "uri": checkpoint["uri"], "files": checkpoint["files"]}
        if checkpoint.get("metric") is not None:
            body["metric"] = checkpoint["metric"]
        try:
            answer = self._call("checkpoint", body)
        except Stale:
            self.stale = True
            with self._changed:
                self._changed.notify_all()
            return {"error": "%s was superseded" % self}
        except Refused as e:
            return {"error": str(e), "code": e.code}
        self.record(kind="checkpoint", trial=self.name, attempt=self.attempt, step=checkpoint["step"], uri=checkpoint["uri"],
                    files=checkpoint["files"])
        self._obey(answer)
        return {"keep": answer.get("keep")}

    def _report(self):
        """Send events as they come, and a sign of life every report_ms, until the final is sent."""
        pause = self.controller.setup["report_ms"] / 1000.0
        kill_at, stopped, idle = None, 0, _Idle() if self.gang else None
        while True:
            with self._changed:
                if not self._events:
                    self._changed.wait_for(lambda: self._events or self._done, pause)
                if self._done or self.stale:
                    return
                events = self._events[:MAX_REPORT_EVENTS]
            try:
                body = {"events": events, "log_bytes": self.log_bytes}
                if idle and self._child:
                    body["idle_ms"] = int(1000 * idle.seconds(self._child.pid))
                answer = self._call("report", body)
            except Stale:
                with self._changed:
                    if not self._finishing:  # else the final has been taken meanwhile, or will be told the same
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
            if answer.get("op") == "continue":
                self._wished = False  # it is granted or withdrawn, and there may be another one
            if self.op and kill_at is None:
                kill_at = time.monotonic() + (self.op.get("grace_ms") or self.controller.setup["stop_grace_ms"]) / 1000.0
            if kill_at is not None and time.monotonic() > kill_at and not self._ended:
                self.kill_process()
            # Times that it was seen count, not the clock: that goes on while this process stands still as well.
            stopped = stopped + 1 if self.gang and self._child and not events and _stopped(self._child.pid) else 0
            if stopped * pause >= self.controller.setup["lease_ms"] / 1000.0:
                with self._changed:
                    self._failed = {"type": "ProcessDied", "message": "the process stood still, stopped by a signal, for %.0f s, and the others of its gang waited for it" % (stopped * pause)}
                    self._changed.notify_all()
                return

    def _obey(self, answer):
        op = answer.get("op")
        if op in ("stop", "pause") and not self.op:
            self.op = answer
            self._send({"op": op, "reason": answer.get("reason", "")})
            if self._serves:
                self.kill_process()
        elif op == "checkpoint" and not self._wished:
            self._wished = True
            self._send({"op": op, "reason": answer.get("reason", "")})

    def kill_process(self):
        if self._child:
            self._child.kill()

    def _finish(self):
        conclusion = self._conclusion()
        self._catch_up()
        if self.gang and conclusion["status"] == "FAILED" and _is_consequence(conclusion["error"]):
            with self._changed:  # the member that died tells the controller more than those that noticed
                self._changed.wait_for(lambda: self.stale, CONSEQUENCE_REPORTS * self.controller.setup["report_ms"] / 1000.0)
        self._finishing = True
        # What the controller has refused it will not get: a final that counts it would be refused as well.
        body = dict(conclusion, seq=self._acked if self._failed else self._made, log_bytes=self.log_bytes, next=True)
        if self.slot:
            body["slot"] = self.slot
        answer = self._call("final", body)
        print("%s: %s %s" % (self, answer["state"], answer.get("reason", "")), flush=True)
        return body, answer

    def _conclusion(self):
        final = self.final
        stopped = self.op and {"stop": "STOPPED", "pause": "PAUSED"}[self.op["op"]]
        if self._failed:
            return {"status": "FAILED", "error": self._failed}
        if self._child is None:
            return {"status": stopped}
        if final is None:
            if stopped and self._serves:
                return {"status": stopped}
            if stopped:
                return {"status": stopped, "error": {"type": "StopTimeout", "message": "told to stop, the function went on and was killed",
                                                     "remedy": "call reporter.broadcast more often"}}
            return {"status": "FAILED", "error": {"type": "ProcessDied", "message": "the trial's process ended with %s" % _how(self._child.status),
                                                  "remedy": "look at the end of its log"}}
        if "error" in final and self.gang and stopped:
            return {"status": stopped}  # collectives break when the first member leaves
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
                left = _waiting(self._log_read)
                continue
            with self._log_lock:  # there is something, or its end: this does not wait
                data = os.read(self._log_read, 65536 if left is None else min(left, 65536))
                rest += data
                end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
                if not end and len(rest) > MAX_LINE:
                    end = len(rest)
                if end:
                    self._take_log(rest[:end])
                    rest = rest[end:]
                self._log_taken += len(data)
            if not data:
                break
            if left is not None:
                left -= len(data)
        with self._log_lock:
            self._log_over = True
            os.close(self._log_read)
            os.close(self._gone_read)
            if rest:
                self._take_log(rest)

    def _catch_up(self):
        """Wait until what the process had printed when it said how the function ended is taken: what is reported of its log counts that."""
        until, there = time.monotonic() + LAST_SECONDS, None
        while self._child and time.monotonic() < until:
            with self._log_lock:
                if self._log_over or there is not None and self._log_taken >= there:
                    return
                if there is None:
                    there = self._log_taken + _waiting(self._log_read)
            time.sleep(0.01)

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
                    print("%s: %s: %s" % (self, file.path, e), flush=True)


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


class Threads:
    """Threads that outlive what they do: what they keep, as connections, serves the next trial."""

    def __init__(self):
        self._idle = []

    def start(self, work):
        """Have a thread call work(). Returns the event that it has."""
        done = threading.Event()
        try:
            orders = self._idle.pop()
        except IndexError:
            orders = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(orders,), daemon=True).start()
        orders.put((work, done))
        return done

    def _run(self, orders):
        while True:
            work, done = orders.get()
            try:
                work()
            finally:
                done.set()
            self._idle.append(orders)


class Slot:
    """Runs one trial after the other, until it is told to end."""

    def __init__(self, number, controller, runner, fs, record, writer, threads):
        self.number, self.controller, self.runner, self.fs, self.record, self.writer, self.threads = number, controller, runner, fs, record, writer, threads

    def work(self):
        last = None  # the trial that ended here last, with its final, in case the answer to it was lost
        order = None
        while True:
            order = order or self.controller.next(self.number)
            action, assignment, reason, order = order["action"], order.get("trial"), order.get("reason", ""), None
            if action == "trial":
                if last and (last[0].name, last[0].attempt) == (assignment["trial"], assignment["attempt"]):
                    try:
                        order = last[0]._call("final", last[1]).get("next")
                    except Stale:
                        pass
                    continue
                trial = Trial(self.controller, assignment, self.fs, self.record, self.threads, self.number)
                self.controller.holding[self.number] = trial.held
                final, order = trial.run(self.runner)
                del self.controller.holding[self.number]
                self.writer.add(trial)
                last = final and (trial, final)
            elif action in ("drain", "stop"):
                print("executor %s: %s %s" % (self.controller.id, action, reason), flush=True)
                return action


def _stat(path):
    """The fields of a process from its state on (proc(5)), None if it has ended."""
    try:
        with open(path, "rb") as f:
            return f.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _stopped(pid):
    """Whether somebody has stopped a process by a signal."""
    fields = _stat("/proc/%d/stat" % pid)
    return bool(fields) and fields[0] == b"T"


def _used(pid):
    """The processor time, in seconds, that the processes of a process group have used."""
    ticks = 0
    for name in os.listdir("/proc"):
        fields = _stat("/proc/%s/stat" % name) if name.isdigit() else None
        if fields and int(fields[2]) == pid:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class _Idle:
    """For how long the processes of a trial have done next to nothing."""

    def __init__(self):
        self._since = None

    def seconds(self, pid):
        now = time.monotonic()
        if self._since is None:  # it has just begun
            self._since, self._looked, self._used = now, now, 0.0
        if now - self._looked >= IDLE_LOOK_SECONDS:
            used = _used(pid)
            if abs(used - self._used) > IDLE_SHARE * (now - self._looked):  # less, where one has ended
                self._since = now
            self._used, self._looked = used, now
        return now - self._since


def _waiting(pipe):
    """How many bytes are in a pipe."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


def _how(status):
    """How a process has ended, by its wait status."""
    if status is None:
        return "no status"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "signal %d (%s)" % (number, signal.Signals(number).name) + (", as when memory runs out" if number == signal.SIGKILL else "")
    return "status %d" % os.WEXITSTATUS(status)


# What the libraries of collectives say when another member is gone: gloo, NCCL, gRPC, Horovod.
_COLLECTIVE = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe|gloo|nccl|horovod|socket (closed|timeout)|unavailable|remote process exited|coordination", re.IGNORECASE)


def _is_consequence(error):
    """Whether an exception in a member of a gang is what the death of another one looks like."""
    return error.get("type") != "ProcessDied" and bool(_COLLECTIVE.search(error.get("type", "") + " " + error.get("message", "")))


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
    recording = threading.Thread(target=_record_environment, args=(_webhdfs.WebHDFS(timeout=20), setup["directory"]), daemon=True)
    recording.start()
    work = os.environ.get("HOPS_WORK_DIR") or os.getcwd()
    os.chdir(work)
    if setup.get("code_dir"):
        setup = dict(setup, code_dir=os.path.join(work, setup["code_dir"]))
    os.environ["ML_ID"] = setup["experiment"]
    print("executor %s of %s on %s" % (setup["executor"], setup["experiment"], urllib.parse.urlsplit(controller.where[0]).netloc), flush=True)
    runner = _runner.Runner(setup)
    # Registering again says that this executor lives: who is silent loses its lease, and with it the files.
    fs, writer, threads = _webhdfs.WebHDFS(), Writer(controller.register, setup["report_ms"] / 1000.0), Threads()
    slots = [Slot(n, controller, runner, fs, record, writer, threads) for n in range(max(1, setup.get("slots") or 1))]
    ends = queue.Queue()
    for slot in slots:
        threading.Thread(target=_until_the_end, args=(slot, ends), daemon=True).start()
    for _ in slots:
        end = ends.get()
        if isinstance(end, BaseException):
            raise end
        if end == "stop":
            break
    writer.close()
    recording.join(RECORD_SECONDS)


def _record_environment(fs, directory):
    problem = _environment.record(fs, directory)
    if problem:
        print("the environment of the experiment was not recorded: %s" % " ".join(problem.split()), flush=True)


def _until_the_end(slot, ends):
    try:
        ends.put(slot.work())
    except BaseException as e:  # noqa: B902 - whatever it is ends the executor
        ends.put(e)


if __name__ == "__main__":
    main()
