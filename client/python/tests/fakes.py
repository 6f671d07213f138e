"""A WebHDFS server and a controller for tests, on the standard library."""
import collections
import hashlib
import hmac
import json
import re
import ssl
import struct
import threading
import urllib.parse
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hops import _signature


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self, status, body, headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while True:
            size = self.rfile.readline()
            if not size:
                raise ConnectionAbortedError("the body is cut off")
            part = self.rfile.read(int(size, 16))
            self.rfile.readline()
            if not part:
                return b"".join(parts)
            parts.append(part)

    def _serve(self):
        try:
            self.server.fake.serve(self)
        except ConnectionError:  # the client is gone
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = _serve


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that nobody has accepted yet, on a machine that is busy


class Fake:
    """A server; by TLS if a file with its key and certificate is given."""

    def __init__(self, identity=None, newest=None):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.fake = self
        self.url = "http%s://127.0.0.1:%d" % ("s" if identity else "", self.server.server_address[1])
        if identity:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity)
            if newest:
                context.maximum_version = newest
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class FakeHDFS(Fake):
    """Namenode and datanode doors over a dict. broken_appends, broken_creates: how many of them write half and break the connection. lost_publishes: of how many the
    answer is lost. hold: an
    event that calls about logs wait for; there is a file /held once one does. refuse: files whose path ends so are not taken. full: a quota is
    exceeded by all files of checkpoints, in these words."""

    def __init__(self, identity=None, newest=None):
        self.files, self.dirs, self.lock = {}, {"/"}, threading.RLock()
        # Of reading many: paths that are being written and that nobody may read, by what datanode each path is served, the least number of
        # entries of a page, and what becomes of the next READMANYs ("cut", "damage", "refuse", "piece": one of it fails).
        self.open, self.secret, self.page, self.faults = set(), set(), 1000, []
        self.asked, self.old = [], False
        self.standby = False
        self.broken_appends = self.broken_creates = self.lost_publishes = 0
        self.published = {}  # steps by requestid
        self.hold = None
        self.refuse = self.full = None
        super().__init__(identity, newest)

    def serve(self, h):
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path[len("/webhdfs/v1"):])
        q = {k: v[0] for k, v in urllib.parse.parse_qs(url.query).items()}
        data = h.body()
        if self.hold is not None and path.endswith(".log"):
            with self.lock:
                self.files["/held"] = b""
            self.hold.wait(240)
        with self.lock:
            try:
                self._serve(h, path, q, data)
            except FileNotFoundError as e:
                self._error(h, 404, "FileNotFoundException", str(e))

    def _error(self, h, status, name, message):
        h.answer(status, {"RemoteException": {"exception": name, "javaClassName": name, "message": message}})

    def _serve(self, h, path, q, data):
        op = q["op"]
        if self.standby:
            return self._error(h, 403, "StandbyException", "Operation category READ is not supported in state standby")
        if op in ("OPENMANY", "READMANY") and not self.old:
            return self._open_many(h, path, q, data) if op == "OPENMANY" else self._read_many(h, data)
        if op in ("OPENMANY", "READMANY"):
            return self._error(h, 400, "IllegalArgumentException", "Invalid value for webhdfs parameter \"op\": %s is not a valid POST operation." % op)
        if op == "PUBLISH" and not self.old:
            steps = json.loads(data)["steps"]
            missing = [s["delete"]["path"] for s in steps if "delete" in s and not s["delete"]["ifThere"] and s["delete"]["path"] not in self.files]
            if missing:
                return self._error(h, 404, "FileNotFoundException", "step 1 of 1 (delete %s): File does not exist: %s" % (missing[0], missing[0]))
            self.published.setdefault(q["requestid"], []).append(steps)
            if self.lost_publishes:
                self.lost_publishes -= 1
                h.close_connection = True
                h.connection.close()
                return
            made = [s["createSnapshot"] for s in steps if "createSnapshot" in s]
            return h.answer(200, {"Publish": {"steps": len(steps), "snapshot": "%s/.snapshot/%s" % (made[0]["path"], made[0]["name"]) if made else None}})
        if op == "PUBLISH":
            return self._error(h, 400, "IllegalArgumentException", "Invalid value for webhdfs parameter \"op\": PUBLISH is not a valid POST operation.")
        if op == "LISTSTATUS_BATCH":
            below = path.rstrip("/") + "/"
            if path in self.files:
                names = [""]
            else:
                self._status(path, "")
                names = sorted({p[len(below):].split("/")[0] for p in list(self.files) + list(self.dirs) if p.startswith(below) and p != below})
            names = [n for n in names if n > q.get("startAfter", "") or not n]
            page = [self._status(below + n if n else path, n) for n in names[:self.page]]
            return h.answer(200, {"DirectoryListing": {"partialListing": {"FileStatuses": {"FileStatus": page}}, "remainingEntries": max(0, len(names) - self.page)}})
        if op == "CREATE" and self.refuse and path.endswith(self.refuse):
            return self._error(h, 403, "AccessControlException", path + " is refused")
        if op == "CREATE" and self.full and "/checkpoints/" in path:
            return self._error(h, 403, "DSQuotaExceededException", self.full)
        if op in ("CREATE", "APPEND", "OPEN") and "data" not in q:
            if op != "CREATE" and path not in self.files:
                raise FileNotFoundError("File does not exist: " + path)
            return h.answer(200, {"Location": self.url + h.path + "&data=1"})
        if op == "CREATE":
            if path in self.files and q.get("overwrite") != "true":
                return self._error(h, 403, "FileAlreadyExistsException", path + " already exists")
            self._parents(path)
            if self.broken_creates:
                self.broken_creates -= 1
                self.files[path] = data[:len(data) // 2]
                h.close_connection = True
                h.connection.close()
                return
            self.files[path] = data
            return h.answer(201, b"")
        if op == "APPEND":
            if self.broken_appends:
                self.broken_appends -= 1
                self.files[path] += data[:len(data) // 2]
                h.close_connection = True
                h.connection.close()
                return
            self.files[path] += data
            return h.answer(200, b"")
        if op == "OPEN":
            start = int(q.get("offset", 0))
            end = start + int(q["length"]) if "length" in q else None
            return h.answer(200, self.files[path][start:end])
        if op == "GETFILESTATUS":
            return h.answer(200, {"FileStatus": self._status(path, "")})
        if op == "LISTSTATUS":
            self._status(path, "")
            below = path.rstrip("/") + "/"
            names = sorted({p[len(below):].split("/")[0] for p in list(self.files) + list(self.dirs) if p.startswith(below) and p != below})
            return h.answer(200, {"FileStatuses": {"FileStatus": [self._status(below + n, n) for n in names]}})
        if op == "MKDIRS":
            self._parents(path + "/x")
            return h.answer(200, {"boolean": True})
        if op == "DELETE":
            gone = [p for p in self.files if p == path or p.startswith(path + "/")]
            for p in gone:
                del self.files[p]
            known = {d for d in self.dirs if d == path or d.startswith(path + "/")}
            self.dirs -= known
            return h.answer(200, {"boolean": bool(gone or known)})
        if op == "RENAME":
            to = q["destination"]
            if "renameoptions" in q and not self._exists(path):
                raise FileNotFoundError("File does not exist: " + path)
            if q.get("renameoptions") == "NONE" and self._exists(to):
                return self._error(h, 403, "FileAlreadyExistsException", to + " already exists")
            if "renameoptions" in q and to.startswith(path + "/"):
                return self._error(h, 403, "IOException", "%s is below %s" % (to, path))
            if q.get("renameoptions") == "OVERWRITE" and path in self.files:
                self.files.pop(to, None)
            if to in self.files or to in self.dirs or not self._exists(path):
                return h.answer(200, {"boolean": False})
            for p in [p for p in self.files if p == path or p.startswith(path + "/")]:
                self.files[to + p[len(path):]] = self.files.pop(p)
            for d in [d for d in self.dirs if d == path or d.startswith(path + "/")]:
                self.dirs.remove(d)
                self.dirs.add(to + d[len(path):])
            return h.answer(200, b"" if "renameoptions" in q else {"boolean": True})
        self._error(h, 400, "UnsupportedOperationException", op + " is not supported")

    def _open_many(self, h, root, q, body):
        """The plan of two datanodes: even and odd ones of the files in the request. Their requests are JSON, which no client looks into."""
        names = body.decode().split("\0")
        self.asked.append(len(names))
        exclude, limit = q.get("excludedatanodes", "").split(","), int(q["maxbytes"])
        head, groups, told, size = {"groups": [], "empty": [], "large": [], "errors": []}, [], 0, 0
        for i, name in enumerate(names):
            path = name if name.startswith("/") else root.rstrip("/") + "/" + name
            places = [d for d in ("dn%d:1" % (i % 2), "dn%d:1" % (1 - i % 2)) if d not in exclude]
            data = self.files.get(path)
            if data is None:
                head["errors"].append([i, "FileNotFoundException", "File does not exist: " + path])
            elif path in self.secret:
                head["errors"].append([i, "AccessControlException", "Permission denied: " + path])
            elif path in self.open:
                head["errors"].append([i, "AlreadyBeingCreatedException", path + " is being written"])
            elif not data:
                head["empty"].append(i)
            elif len(data) > 1 << 20:
                head["large"].append([i, len(data)])
            elif not places:
                head["errors"].append([i, "BlockMissingException", "none of its datanodes may be asked"])
            else:
                if size and size + len(data) > limit:
                    break
                size += len(data)
                for g in groups:
                    if g[0] == places[0]:
                        g[1].append((i, path))
                        break
                else:
                    groups.append((places[0], [(i, path)]))
            told += 1
        head["names"], tail = told, b""
        for place, files in groups:
            request = json.dumps([p for _, p in files]).encode()
            head["groups"].append({"url": self.url + "/webhdfs/v1/?op=READMANY&user.name=ann", "datanode": place, "files": len(files), "bytes": 0,
                                   "request": len(request)})
            tail += struct.pack("<%dI" % len(files), *[i for i, _ in files]) + request
        text = json.dumps(head).encode()
        h.answer(200, b"HPM1" + struct.pack("<I", len(text)) + text + tail)

    def _read_many(self, h, body):
        fault = self.faults.pop(0) if self.faults else None
        if fault == "refuse":
            return self._error(h, 403, "IOException", "not now")
        pieces, problems = [self.files[p] for p in json.loads(body)], []
        lengths = [len(p) for p in pieces]
        if fault == "piece":
            lengths[0], pieces[0] = 0xFFFFFFFF, b""
            problems.append([0, "ChecksumException", "blk_1 has a wrong checksum"])
        tail = json.dumps(problems).encode()
        data = b"".join(pieces)
        rest = struct.pack("<%dI" % len(lengths), *lengths) + data + tail
        answer = struct.pack("<4sIIIQ", b"HRA1", len(lengths), len(tail), zlib.crc32(rest), len(data)) + rest
        if fault == "damage":
            answer = answer[:30] + bytes([answer[30] ^ 1]) + answer[31:]
        if fault == "cut":
            h.send_response(200)
            h.send_header("Content-Length", str(len(answer)))
            h.end_headers()
            h.wfile.write(answer[:len(answer) // 2])
            h.close_connection = True
            return h.connection.close()
        h.answer(200, answer)

    def _exists(self, path):
        return path in self.files or path in self.dirs

    def _parents(self, path):
        parts = path.strip("/").split("/")[:-1]
        for i in range(len(parts)):
            self.dirs.add("/" + "/".join(parts[:i + 1]))

    def _status(self, path, name):
        path = path.rstrip("/") or "/"
        if path in self.files:
            return {"type": "FILE", "length": len(self.files[path]), "pathSuffix": name}
        if path in self.dirs:
            return {"type": "DIRECTORY", "length": 0, "pathSuffix": name}
        raise FileNotFoundError("File does not exist: " + path)


class FakeManager(Fake):
    """A resource manager that gives one answer after the other."""

    def __init__(self, answers):
        self.answers, self.keys = list(answers), []
        super().__init__()

    def serve(self, h):
        h.body()
        self.keys.append(h.headers.get("Idempotency-Key"))
        h.answer(*self.answers.pop(0))


class FakeSubmissions(Fake):
    """A resource manager that takes jobs; each has finished as soon as it is there."""

    def __init__(self):
        self.jobs, self.lock = [], threading.Lock()
        super().__init__()

    def serve(self, h):
        body = h.body()
        with self.lock:
            if h.command == "POST":
                self.jobs.append(json.loads(body))
                return h.answer(201, {"id": "application_1_%04d" % len(self.jobs)})
        h.answer(200, {"state": "FINISHED", "final_status": "SUCCEEDED", "phase": "SUCCEEDED"})


class FakeController(Fake):
    """Hands out assignments and records what it is told. stop_at: the step whose report is answered with stop. unavailable:
    how many calls about trials are refused for now. empty: how many calls of each kind are dropped and answered 200 without
    a word, as a server may that ends meanwhile. gone: it ends when a report has come. strangers: how many calls are answered
    first by somebody who does not know the key. refuse_at: the step whose report is refused for good. on_final and on_register
    are told how many finals, and executors, there were. on_report is called by each report. hands_over: answers to finals carry the next trial.
    grace_ms: how long who is told to stop may take."""

    def __init__(self, setup, assignments, stop_at=None, unavailable=0, empty=0, gone=False, strangers=0, checkpoint_at=None, refuse_at=None,
                 on_final=None, on_register=None, on_report=None, identity=None, hands_over=False, grace_ms=240_000):
        self.setup, self.assignments, self.stop_at, self.unavailable, self.gone = setup, list(assignments), stop_at, unavailable, gone
        self.empty = collections.defaultdict(lambda: empty)
        self.strangers, self.numbers = strangers, set()
        self.checkpoint_at, self.refuse_at, self.hands_over, self.grace_ms = checkpoint_at, refuse_at, hands_over, grace_ms
        self.on_final, self.on_register, self.registered = on_final or (lambda n: None), on_register or (lambda n: None), 0
        self.on_report = on_report or (lambda: None)
        self.reports, self.finals, self.checkpoints, self.acked = [], [], [], {}
        self.lock = threading.RLock()
        self.slots = collections.Counter()  # who asked for work
        super().__init__(identity)

    def serve(self, h):
        body = h.body()
        with self.lock:
            path = urllib.parse.urlsplit(h.path).path.split("/")
            signing, given = _signature.key("sesame", "executor"), h.headers.get("Authorization", "")
            number = int(re.search(r"number=(\d+)", given).group(1))
            want = _signature.sign(signing, h.command, h.path, urllib.parse.urlsplit(self.url).netloc, "container_1", number, body)
            if given != want or "sesame" in str(h.headers) or number in self.numbers:
                return h.answer(401, {"error": {"code": "UNAUTHORIZED", "message": "no signature"}})
            self.numbers.add(number)
            h.__dict__.pop("answer", None)  # that of the request before
            plain = h.answer

            def prove(status, body):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                text = "hops-answer-1\n%d\n%d\n%s" % (number, status, hashlib.sha256(data).hexdigest())
                plain(status, data, [("X-Hops-Proof", hmac.new(signing, text.encode(), hashlib.sha256).hexdigest())])

            if self.strangers:
                self.strangers -= 1
                return h.answer(200, {"action": "drain", "reason": "says a stranger"})
            h.answer = prove
            if self.unavailable and path[2] == "trials":
                self.unavailable -= 1
                return h.answer(503, {"error": {"code": "NOT_READY", "message": "starting"}})
            if self.empty[path[-1]]:
                self.empty[path[-1]] -= 1
                return h.answer(200, b"")
            if len(body) > 1 << 20:
                return h.answer(413, {"error": {"code": "TOO_LARGE", "message": "the request has more than 1048576 bytes"}})
            message = json.loads(body) if body else None
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(h.path).query))
            self.handle(h, path, query, message)

    def handle(self, h, path, query, message):
        """Answer a call that is signed well. The lock is held."""
        if path[2] == "executors" and len(path) == 3:
            self.registered += 1
            self.on_register(self.registered)
            return h.answer(201, self.setup)
        if path[2] == "executors":
            self.slots[int(query.get("slot", 0))] += 1
            if self.assignments:
                return h.answer(200, {"action": "trial", "trial": self.assignments.pop(0)})
            return h.answer(200, {"action": "drain", "reason": "done"})
        key, what = (path[3], path[4]), path[5]
        if self.gone:
            h.close_connection = True
            threading.Thread(target=self.close).start()
            return h.connection.close()
        if what == "report":
            op = "continue"
            self.on_report()
            if self.refuse_at and any(e["step"] >= self.refuse_at for e in message["events"]):
                return h.answer(400, {"error": {"code": "BAD_REQUEST", "message": "not like this"}})
            for e in message["events"]:
                if e["seq"] == self.acked.get(key, 0) + 1:
                    self.acked[key] = e["seq"]
                    self.reports.append((path[3], e["step"], e["metrics"]))
                if self.stop_at and e["step"] >= self.stop_at:
                    op = "stop"
                if self.checkpoint_at and e["step"] >= self.checkpoint_at and not self.checkpoints:
                    op = "checkpoint"
            return h.answer(200, {"ack": self.acked.get(key, 0), "op": op, "grace_ms": self.grace_ms})
        if what == "checkpoint":
            self.checkpoints.append((path[3], message))
            return h.answer(200, {"keep": [message["step"]], "delete": [], "op": "continue"})
        if message["seq"] > self.acked.get(key, 0):
            return h.answer(409, {"error": {"code": "UNREPORTED", "message": "report the rest first"}})
        self.finals.append((path[3], message))
        self.on_final(len(self.finals))
        answer = {"state": message["status"]}
        if self.hands_over and message.get("next") and self.assignments:
            answer["next"] = {"action": "trial", "trial": self.assignments.pop(0)}
        return h.answer(200, answer)


class FakeGangController(FakeController):
    """Runs one trial by a gang, whose members are the slots of executors: slot s is rank s. roles are theirs. After a failure the next
    attempt begins, restarts times. stop_at: the step of the chief after which all are told to stop."""

    def __init__(self, setup, assignments, roles=("chief", "worker"), framework="plain", restarts=1, env=None, ports=1, **more):
        self.order, self.roles, self.framework, self.restarts, self.env, self.ports = assignments[0], roles, framework, restarts, env or {}, ports
        self.attempt, self.over, self.given, self.joined, self.ended, self.killed = 1, False, set(), {}, {}, False
        self.stale = []  # calls that were refused by the fence
        self.idle = {}  # by attempt and rank: the longest time without work that was told
        super().__init__(setup, [], **more)
        self.changed = threading.Condition(self.lock)

    def handle(self, h, path, query, message):
        if path[2] == "executors" and len(path) == 3:
            return super().handle(h, path, query, message)
        if path[2] == "executors":
            slot = int(query.get("slot", 0))
            self.changed.wait_for(lambda: self.over or slot not in self.given, 5)
            if self.over:
                return h.answer(200, {"action": "drain", "reason": "done"})
            if slot in self.given:
                return h.answer(200, {"action": "wait"})
            self.given.add(slot)
            role = self.roles[slot]
            resume = max((m["step"] for _, m in self.checkpoints), default=0)
            order = dict(self.order, attempt=self.attempt, dirs=dict(self.order["dirs"], log="/e/0007/output.%d.rank-%d.log" % (self.attempt, slot)),
                         gang={"framework": self.framework, "rank": slot, "world": len(self.roles), "role": role, "index": self.roles[:slot].count(role),
                               "local_rank": slot, "local_world": len(self.roles), "ports": 0 if slot and self.framework == "horovod" else self.ports})
            if resume:
                order["resume"] = {"step": resume, "uri": [m["uri"] for _, m in self.checkpoints if m["step"] == resume][-1]}
            return h.answer(200, {"action": "trial", "trial": order})
        attempt, what, rank = int(path[4]), path[5], message.get("rank", 0)
        if attempt != self.attempt or self.over:
            self.stale.append((attempt, rank, what))
            return h.answer(409, {"error": {"code": "STALE_ATTEMPT", "message": "the trial is at attempt %d" % self.attempt}})
        if what == "join":
            self.joined[rank] = message
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(self.joined) == len(self.roles) or attempt != self.attempt, min(float(query["wait"]), 5))
            if attempt != self.attempt:
                return h.answer(409, {"error": {"code": "STALE_ATTEMPT", "message": "the trial is at attempt %d" % self.attempt}})
            if len(self.joined) < len(self.roles):
                return h.answer(200, {"ready": False})
            members = [{"rank": r, "role": self.roles[r], "host": j["host"], "ports": j["ports"]} for r, j in sorted(self.joined.items())]
            chief = members[0]
            env = dict({"HOPS_RANK": str(rank), "HOPS_WORLD_SIZE": str(len(members)), "HOPS_FRAMEWORK": self.framework, "HOPS_ROLE": self.roles[rank],
                        "HOPS_GENERATION": str(attempt), "HOPS_MEMBERS": json.dumps(members), "OMP_NUM_THREADS": "1",
                        "HOPS_HOSTFILE": "$HOPS_TRIAL_DIR/hostfile"}, **self.env)
            if self.framework == "torch":
                env.update(RANK=str(rank), WORLD_SIZE=str(len(members)), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(len(members)),
                           MASTER_ADDR=chief["host"], MASTER_PORT=str(chief["ports"][0]))
                if self.joined[rank].get("interface"):
                    env["GLOO_SOCKET_IFNAME"] = self.joined[rank]["interface"]
            if self.framework == "horovod":
                env.update(HOROVOD_RANK=str(rank), HOROVOD_SIZE=str(len(members)), HOROVOD_GLOO_RENDEZVOUS_ADDR=chief["host"],
                           HOROVOD_GLOO_RENDEZVOUS_PORT=str(chief["ports"][0]))
            return h.answer(200, {"ready": True, "members": members, "env": env, "files": {"hostfile": "127.0.0.1 slots=2\n"}})
        if what == "report":
            key, op = (attempt, rank), "continue"
            self.idle[key] = max(self.idle.get(key, 0), message.get("idle_ms", 0))
            for e in message["events"]:
                if e["seq"] == self.acked.get(key, 0) + 1:
                    self.acked[key] = e["seq"]
                    self.reports.append((attempt, rank, e["step"], e["metrics"]))
                if self.stop_at and rank == 0 and e["step"] >= self.stop_at:
                    self.killed = True
            if self.killed or rank and self._ended_all():
                op = "stop"
            return h.answer(200, {"ack": self.acked.get(key, 0), "op": op, "grace_ms": self.grace_ms})
        if what == "checkpoint":
            self.checkpoints.append((path[3], message))
            return h.answer(200, {"keep": [message["step"]], "delete": [], "op": "continue"})
        self.finals.append(((attempt, rank), message))
        if message["status"] == "FAILED" and not self.killed:
            self.over = attempt > self.restarts
            self.attempt, self.given, self.joined, self.ended = attempt + 1, set(), {}, {}
        else:
            self.ended[rank] = message["status"]
            self.over = len(self.ended) == len(self.roles)
        self.changed.notify_all()
        return h.answer(200, {"state": message["status"] if self.over else "RUNNING"})

    def _ended_all(self):
        return all(r in self.ended for r, role in enumerate(self.roles) if role == "chief" or role == "worker" and self.framework not in ("mpi", "parameter_server"))
