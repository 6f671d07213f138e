"""Members of a gang: slots of one executor are its members here."""
import json
import os
import re
import socket
import tempfile
import unittest
from unittest import mock

import fakes
import harness
from hops import _gang, _run, dist, executor

ROLES = ("chief", "worker")


class Gang(harness.ExecutorCase):
    FUNCTIONS = """
import json, os, signal, socket, time
from hops import _run, checkpoint, dist

def meets(lr, reporter):
    # The members talk at the ports that were reserved for them.
    ctx = dist.context()
    host, port = ctx.members[0]["host"], ctx.members[0]["ports"][0]
    if ctx.is_chief:
        with socket.create_server((host, port)) as s:
            others = [s.accept()[0] for _ in range(ctx.world - 1)]
            total = sum(int(o.recv(8)) for o in others)
    else:
        while True:
            try:
                with socket.create_connection((host, port)) as s:
                    s.sendall(b"%d" % ctx.rank)
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        total = 0.0
    reporter.broadcast(total, 1)
    print("rank", ctx.rank, ctx.role, open(os.environ["HOPS_HOSTFILE"]).read().strip())
    return {"accuracy": total}

def dies_once(lr, reporter):
    ctx = dist.context()
    saved = checkpoint.load()
    start = saved[0] if saved else 0
    for step in range(start + 1, 6):
        reporter.broadcast(float(step), step)
        if ctx.is_chief:
            checkpoint.save({"step": step}, step)
        if ctx.generation == 1 and step == 3:
            if ctx.rank == 1:
                while not os.path.exists(os.environ["HOPS_WORK_DIR"] + "/saved"):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            open(os.environ["HOPS_WORK_DIR"] + "/saved", "w").close()
            time.sleep(600)  # as in a collective whose other side is gone
    return float(step)

def saves(lr, reporter):
    # All call it; the chief does it. What it saved the others find where it says.
    ctx, saved = dist.context(), os.environ["HOPS_WORK_DIR"] + "/saved"
    first, second = checkpoint.save({"step": 1}, 1), checkpoint.save({"step": 2}, 2, wait=False).wait()
    if ctx.is_chief:
        _run.current().fs.create("/e/0007/checkpoints/1/step-3.tmp/part", b"x")
    third = checkpoint.commit_dir(3)
    if ctx.is_chief:
        open(saved, "w").close()
    while not os.path.exists(saved):
        time.sleep(0.01)
    print([first, second, third], checkpoint.latest(), checkpoint.load("/e/0007/checkpoints/1/step-2"))

def waits(lr, reporter):
    ctx = dist.context()
    for step in range(1, 10 ** 6):
        reporter.broadcast(float(step), step)
        time.sleep(0.01)

calls = []

def anew(lr):
    calls.append(1)
    print("call", len(calls))
    if dist.context().generation == 1:
        raise RuntimeError("once")
    return 1.0

def breaks(lr, reporter):
    # The chief leaves when it is told to stop, and what the worker waits for breaks.
    ctx = dist.context()
    gone = os.path.join(os.environ["HOPS_WORK_DIR"], "gone")
    if ctx.rank == 1:
        reporter.broadcast(0.0, 1)
        while not os.path.exists(gone):
            time.sleep(0.01)
        raise RuntimeError("Connection closed by peer")
    try:
        for step in range(1, 10 ** 6):
            reporter.broadcast(float(step), step)
            time.sleep(0.01)
    finally:
        open(gone, "w").close()

def noticed(lr):
    ctx, first = dist.context(), os.environ["HOPS_WORK_DIR"] + "/noticed"
    if ctx.generation == 1:
        if ctx.rank == 1:
            while not os.path.exists(first):
                time.sleep(0.01)
            time.sleep(0.3)  # the one that noticed would be first
            os.kill(os.getpid(), signal.SIGKILL)
        open(first, "w").close()
        raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:2134")
    return 1.0

def stands_still(lr):
    ctx = dist.context()
    if ctx.generation == 1:
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)  # as in a collective
    return 1.0

def works_or_waits(lr):
    rank, told = dist.context().rank, os.path.join(os.environ["TOLD"], "told")
    while not os.path.exists(told):
        time.sleep(0.2 if rank == 0 else 0)
    return 1.0

@dist.every_role
def every(lr):
    print("called", dist.context().role)
    return 1.0

def chief_only(lr):
    print("called", dist.context().role)
    return 1.0
"""

    def gang(self, function, mode="fork", roles=ROLES, framework="plain", setup=None, **more):
        return self.run_executor(function, mode, kind=fakes.FakeGangController, roles=roles, framework=framework, setup=dict(setup or {}, slots=len(roles)), **more)

    def test_members_meet(self):
        for mode in ("fork", "spawn", "inproc"):
            with self.subTest(mode):
                c, hdfs, facts = self.gang("meets", mode, roles=("chief", "worker", "worker"))
                self.assertEqual({who: m["status"] for who, m in c.finals}, {(1, r): "COMPLETED" for r in range(3)})
                finals = dict(c.finals)
                self.assertEqual(finals[1, 0]["metric"], 3.0)
                self.assertNotIn("metric", finals[1, 1])
                for rank, role in enumerate(("chief", "worker", "worker")):
                    self.assertEqual(hdfs.files["/e/0007/output.1.rank-%d.log" % rank], b"rank %d %s 127.0.0.1 slots=2\n" % (rank, role.encode()))
                events = sorted(p for p in [*hdfs.files] if "tfevents" in p)
                self.assertEqual([os.path.dirname(p) for p in events], ["/e/0007", "/e/0007/rank-1", "/e/0007/rank-2"])

    def test_a_rank_that_dies_restarts_all_from_the_checkpoint(self):
        c, _, facts = self.gang("dies_once")
        first = [(who, m["error"]["type"]) for who, m in c.finals if who[0] == 1]
        self.assertEqual(first, [((1, 1), "ProcessDied")])
        self.assertIn((1, 0), {s[:2] for s in c.stale}, "rank 0 heard of it")
        self.assertEqual({who: m["status"] for who, m in c.finals if who[0] == 2}, {(2, 0): "COMPLETED", (2, 1): "COMPLETED"})
        saved = [s for a, r, s, _ in c.reports if a == 2 and r == 0]
        self.assertEqual(saved[0], max(m["step"] for _, m in c.checkpoints if m["uri"].startswith("/e/0007/checkpoints/1") and m["step"] < saved[0]) + 1)
        self.assertEqual(saved[-1], 5)

    def test_a_rank_that_stands_still_is_killed(self):
        c, _, _ = self.gang("stands_still", setup={"lease_ms": 400})
        who, final = c.finals[0]
        self.assertEqual((who, final["error"]["type"]), ((1, 1), "ProcessDied"))
        self.assertIn("stood still", final["error"]["message"])
        self.assertEqual({who: m["status"] for who, m in c.finals if who[0] == 2}, {(2, 0): "COMPLETED", (2, 1): "COMPLETED"})

    def test_who_waits_says_so(self):
        # The one that waits says so for more than a second, the one that works begins anew each time that it has.
        class Told(fakes.FakeGangController):
            def handle(self, h, path, query, message):
                if path[-1] == "report":
                    rank, idle = message.get("rank", 0), message.get("idle_ms", 0)
                    self.worked = self.worked or rank == 1 and idle < self.last
                    if rank == 1:
                        self.last = idle
                    if self.worked and self.idle.get((1, 0), 0) > 1000:
                        open(os.path.join(self.work, "told"), "w").close()
                return super().handle(h, path, query, message)
            worked, last = False, 0
        with tempfile.TemporaryDirectory() as Told.work:
            c, _, _ = self.run_executor("works_or_waits", kind=Told, roles=ROLES, setup={"slots": 2}, constants={"IDLE_LOOK_SECONDS": 0.2}, env={"TOLD": Told.work})
        self.assertEqual({who: m["status"] for who, m in c.finals}, {(1, 0): "COMPLETED", (1, 1): "COMPLETED"})
        self.assertTrue(c.worked)
        self.assertGreater(c.idle[1, 0], 1000)

    def test_the_chief_saves_for_all(self):
        c, hdfs, _ = self.gang("saves")
        self.assertEqual({who: m["status"] for who, m in c.finals}, {(1, 0): "COMPLETED", (1, 1): "COMPLETED"}, hdfs.files)
        self.assertEqual([(m.get("rank", 0), m["step"]) for _, m in c.checkpoints], [(0, 1), (0, 2), (0, 3)])
        paths = ["/e/0007/checkpoints/1/step-%d" % n for n in (1, 2, 3)]
        self.assertEqual(hdfs.files["/e/0007/output.1.rank-0.log"].decode(), "%s %s (2, {'step': 2})\n" % (paths, (3, paths[2])))
        self.assertEqual(hdfs.files["/e/0007/output.1.rank-1.log"].decode(), "[None, None, None] None (2, {'step': 2})\n")

    def test_the_cause_is_told_before_its_consequence(self):
        c, _, _ = self.gang("noticed", setup={"report_ms": 1000}, constants={"CONSEQUENCE_REPORTS": 100})
        self.assertEqual([(who, m["error"]["type"]) for who, m in c.finals if who[0] == 1], [((1, 1), "ProcessDied")])

    def test_a_process_is_in_one_gang(self):
        c, hdfs, _ = self.gang("anew", "inproc")
        self.assertEqual({who: m["status"] for who, m in c.finals if who[0] == 2}, {(2, 0): "COMPLETED", (2, 1): "COMPLETED"})
        for rank in (0, 1):
            self.assertEqual(hdfs.files["/e/0007/output.2.rank-%d.log" % rank], b"call 1\n")

    def test_a_stop_ends_all(self):
        c, _, _ = self.gang("waits", stop_at=3)
        self.assertEqual(sorted((who, m["status"]) for who, m in c.finals), [((1, 0), "STOPPED"), ((1, 1), "STOPPED")])

    def test_a_collective_that_breaks_by_a_stop_is_no_failure(self):
        c, _, _ = self.gang("breaks", stop_at=3)
        self.assertEqual(dict(c.finals)[1, 0]["status"], "STOPPED")
        self.assertEqual(c.attempt, 1)

    def test_members_that_serve_are_killed_at_the_end(self):
        c, hdfs, _ = self.gang("chief_only", framework="mpi", ports=0)
        self.assertEqual(sorted((who, m["status"]) for who, m in c.finals), [((1, 0), "COMPLETED"), ((1, 1), "STOPPED")])
        self.assertEqual(hdfs.files.get("/e/0007/output.1.rank-1.log"), None)
        c, hdfs, _ = self.gang("every", framework="mpi", ports=0)
        self.assertEqual(hdfs.files["/e/0007/output.1.rank-1.log"], b"called worker\n")

    def test_who_is_stale_while_it_joins_asks_again(self):
        # Rank 1 is another executor's, and never comes; after a while the attempt is given up and the next is of one.
        class Alone(fakes.FakeGangController):
            def handle(self, h, path, query, message):
                if path[-1] == "join" and self.attempt == 1:
                    self.attempt, self.given, self.roles = 2, set(), ("chief",)
                    return h.answer(409, {"error": {"code": "STALE_ATTEMPT", "message": "rank 1 was lost"}})
                return super().handle(h, path, query, message)
        c, _, _ = self.run_executor("meets", kind=Alone, setup={"slots": 1})
        self.assertEqual([(who, m["status"]) for who, m in c.finals], [((2, 0), "COMPLETED")])

    def test_a_stop_while_joining(self):
        class Stops(fakes.FakeGangController):
            def handle(self, h, path, query, message):
                if path[-1] == "join":
                    return h.answer(200, {"ready": False, "op": "stop", "reason": "enough"})
                return super().handle(h, path, query, message)
        c, _, _ = self.run_executor("meets", kind=Stops, setup={"slots": 2})
        self.assertEqual(sorted((who, m["status"], m["seq"]) for who, m in c.finals), [((1, 0), "STOPPED", 0), ((1, 1), "STOPPED", 0)])


class Slow(harness.ExecutorCase):
    FUNCTIONS = """
import os, time
while not os.path.exists(os.path.join(os.environ["GO"], "go")):
    time.sleep(0.01)

def train(lr):
    return lr
"""

    def test_a_trial_that_is_lost_while_its_module_is_imported(self):
        # The executor does not wait for the imports: it asks for the next attempt, and reports.
        class Loses(fakes.FakeGangController):
            def handle(self, h, path, query, message):
                if path[-1] == "report" and self.attempt == 1:
                    self.attempt, self.given, self.joined = 2, set(), {}
                    self.changed.notify_all()
                if path[-1] == "report" and self.attempt == 2 and path[4] == "2":
                    with open(os.path.join(self.work, "go"), "w"):
                        pass
                return super().handle(h, path, query, message)
        with tempfile.TemporaryDirectory() as Loses.work:
            c, _, _ = self.run_executor("train", kind=Loses, roles=("chief",), setup={"slots": 1}, env={"GO": Loses.work})
        self.assertEqual([(who, m["status"]) for who, m in c.finals], [((2, 0), "COMPLETED")])


class Vectors(unittest.TestCase):
    """What the SDK sends and reads is what the golden vectors say."""

    def trial(self, name):
        self.controller = mock.Mock()
        self.controller.setup = harness.vector("register")["response"]["body"]
        self.controller.where = ("http://127.0.0.1:1", None)
        self.controller.container = "c"
        return executor.Trial(self.controller, harness.vector(name)["response"]["body"]["trial"], mock.Mock(), lambda **fact: None, executor.Threads())

    def test_join(self):
        trial = self.trial("next-gang")
        join, waits = harness.vector("join"), harness.vector("join-wait")["response"]["body"]
        self.controller.trial.side_effect = [waits, join["response"]["body"]]
        ports = mock.Mock(numbers=[40001])
        with mock.patch.dict(os.environ, NM_HOST="10.0.0.12"), mock.patch.object(_gang, "interface", return_value="eth0"):
            self.assertTrue(trial._join(ports))
        for call in self.controller.trial.call_args_list:
            self.assertEqual(call.args[1:], ("join?wait=3", join["request"]["body"]))
        self.assertEqual(trial.order["env"]["HOPS_RANK"], "1")
        self.assertIn("TF_CONFIG", trial.order["env"])

    def test_the_end_of_a_trial_that_did_not_begin(self):
        trial = self.trial("next-gang")
        self.controller.trial.side_effect = [harness.vector("join-stop")["response"]["body"], {"state": "STOPPED"}]
        final, following = trial.run(mock.Mock())
        self.assertEqual((final["status"], following), ("STOPPED", None))

    def test_the_reports_and_finals_of_a_rank(self):
        trial = self.trial("next-gang")
        for name in ("report-rank", "final-rank"):
            self.assertEqual(harness.vector(name)["request"]["body"]["rank"], trial.rank)
        trial._call("report", {"events": []})
        self.assertEqual(self.controller.trial.call_args.args[2], {"events": [], "rank": 1})

    def test_a_wish_for_a_checkpoint_may_come_again(self):
        trial, ops = self.trial("next-trial"), ["checkpoint", "checkpoint", "continue", "checkpoint"]

        def call(what, body):
            trial._done = len(ops) == 1
            return {"ack": 0, "op": ops.pop(0)}
        self.controller.setup["report_ms"] = 0
        with mock.patch.object(trial, "_call", call):
            trial._report()
        self.assertEqual([m["op"] for m in trial._early], ["checkpoint", "checkpoint"])

    def test_what_comes_behind_the_end_of_the_function_is_not_the_trials(self):
        trial = self.trial("next-trial")
        trial._channel = mock.Mock()
        for message in ({"metric": 1.0, "step": 1, "time": 0, "pid": 1}, {"final": {"metric": 1.0}}, {"metric": 2.0, "step": 2, "time": 0, "pid": 1},
                        {"metric": 2.0, "step": 2, "time": 0, "pid": 2}, {"checkpoint": {"step": 2, "uri": "/x", "files": [], "pid": 2}}):
            trial._take_message(message)
        self.assertEqual((trial._made, len(trial._events), trial._failed), (1, 1, None))
        (answer,), _ = trial._channel.send.call_args
        self.assertEqual((answer["checkpoint"]["step"], "has ended" in answer["checkpoint"]["error"]), (2, True))

    def test_slots_that_hold_something(self):
        c = executor.Controller.__new__(executor.Controller)
        want = harness.vector("register-slots")["request"]["body"]
        c.container, c.instance, c._retried = "c", "i", mock.Mock()
        c.holding = {1: {k: v for k, v in want["held"][0].items() if k != "slot"}, 0: want["holding"]}
        c.register()
        sent = c._retried.call_args.args[2]
        self.assertEqual((sent["holding"], sent["held"]), (want["holding"], want["held"]))

    def test_a_slot_asks_for_itself(self):
        c = executor.Controller.__new__(executor.Controller)
        c.setup, c._retried = {"executor": "e0003"}, mock.Mock()
        for name, slot in (("next-wait", 0), ("next-slot", 1)):
            c.next(slot)
            self.assertEqual(c._retried.call_args.args[1](), harness.vector(name)["request"]["path"])


class Ports(unittest.TestCase):
    def test_a_reserved_port_is_nobody_elses(self):
        ports = _gang.Ports(3, "torch")
        self.addCleanup(ports.close)
        self.assertEqual(len(set(ports.numbers)), 3)
        ports.starting()
        with socket.socket() as s:
            with self.assertRaises(OSError):
                s.bind(("127.0.0.1", ports.numbers[0]))
        with socket.socket() as s:  # as the servers of torch, TensorFlow and JAX do
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", ports.numbers[0]))
            s.listen()
            with socket.create_connection(("127.0.0.1", ports.numbers[0])):
                pass
        with socket.socket(socket.AF_INET6) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("::", ports.numbers[1]))
            s.listen()

    def test_a_port_that_cannot_be_shared_is_given_up(self):
        ports = _gang.Ports(1, "plain")
        self.addCleanup(ports.close)
        ports.starting()
        with socket.socket() as s:
            s.bind(("127.0.0.1", ports.numbers[0]))

    def test_addresses(self):
        with mock.patch.dict(os.environ, NM_HOST="node-7"):
            self.assertEqual(_gang.address("http://10.0.0.1:80"), "node-7")
        with mock.patch.dict(os.environ):
            os.environ.pop("NM_HOST", None)
            self.assertEqual(_gang.address("http://127.0.0.1:80"), "127.0.0.1")
        self.assertEqual(_gang.interface("127.0.0.1"), "lo")
        self.assertEqual(_gang.interface("192.0.2.1"), "")


class Context(unittest.TestCase):
    def context(self, **env):
        with mock.patch.dict(os.environ, env):
            for name in list(os.environ):
                if re.match("(HOPS_|RANK|WORLD_SIZE|LOCAL_|MASTER_)", name) and name not in env:
                    del os.environ[name]
            return dist.context()

    def test_alone_everything_is_the_identity(self):
        ctx = self.context()
        self.assertEqual((ctx.rank, ctx.world, ctx.is_chief, ctx.role), (0, 1, True, "chief"))
        self.assertEqual((ctx.all_reduce(3, "mean"), ctx.broadcast_object("x")), (3, "x"))
        ctx.barrier()

        class Net:
            pass
        with mock.patch.dict(os.environ):
            os.environ.pop("HOPS_WORLD_SIZE", None)
            self.assertIs(dist.wrap_module_class(Net), Net)

    def test_where_it_is(self):
        ctx = self.context(HOPS_RANK="1", HOPS_WORLD_SIZE="3", HOPS_ROLE="worker", HOPS_FRAMEWORK="plain", HOPS_LOCAL_RANK="0", HOPS_LOCAL_WORLD_SIZE="1",
                           HOPS_MEMBERS=json.dumps([{"rank": 0}]))
        self.assertEqual((ctx.rank, ctx.world, ctx.is_chief, ctx.framework, len(ctx.members)), (1, 3, False, "plain", 1))
        with self.assertRaisesRegex(RuntimeError, "a gang of plain has no torch.distributed"):
            ctx.barrier()
        ctx = self.context(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", MASTER_ADDR="h")  # under torchrun
        self.assertEqual((ctx.rank, ctx.world, ctx.local_rank, ctx.framework), (3, 4, 1, "torch"))
        for env in ({"RANK": "a", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}):
            with self.assertRaises(ValueError):
                self.context(**env)

    def test_who_calls_the_function(self):
        def fn():
            pass
        for framework, role, want in (("torch", "worker", True), ("parameter_server", "worker", False), ("parameter_server", "chief", True),
                                      ("parameter_server", "ps", False), ("tensorflow", "evaluator", True), ("mpi", "worker", False)):
            self.assertEqual(dist.calls(fn, {"framework": framework, "role": role}), want)
        self.assertTrue(dist.calls(dist.every_role(fn), {"framework": "parameter_server", "role": "ps"}))

    def test_what_is_not_installed_is_named(self):
        with mock.patch.object(dist.importlib, "import_module", side_effect=ModuleNotFoundError("No module named 'torch'", name="torch")):
            with self.assertRaisesRegex(ModuleNotFoundError, "hops.dist: device needs the package torch"):
                self.context().device

    def test_consequences(self):
        for error, want in (({"type": "RuntimeError", "message": "[../gloo/transport/tcp/pair.cc:538] Connection closed by peer"}, True),
                            ({"type": "DistBackendError", "message": "NCCL error"}, True), ({"type": "ProcessDied", "message": "signal 9"}, False),
                            ({"type": "ZeroDivisionError", "message": "division by zero"}, False)):
            self.assertEqual(executor._is_consequence(error), want)


if __name__ == "__main__":
    unittest.main()
