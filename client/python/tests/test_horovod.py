"""Horovod's rendezvous, spoken to as its client speaks (HTTPStore of horovod/common/gloo, over third_party/HTTPRequest, v0.28.1), and what
hops.dist makes of a gang of Horovod."""
import os
import queue
import socket
import sys
import threading
import time
import types
import unittest
from unittest import mock

import fakes
import harness
from hops import _gang, _horovod, allreduce, dist, executor


def ask(port, text, host="127.0.0.1"):
    """All that is answered to some bytes, up to the end of the connection."""
    with socket.create_connection((host, port), timeout=60) as s:
        try:
            s.sendall(text)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered and hung up before all was sent
        answer = b""
        while True:
            try:
                data = s.recv(4096)
            except ConnectionResetError:
                return answer
            if not data:
                return answer
            answer += data


def until(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.001)


def said(method, path, body=b""):
    """A request with the bytes that Horovod's client sends."""
    return b"%s %s HTTP/1.1\r\nHost: 10.0.0.9\r\nContent-Length: %d\r\n\r\n%s" % (method.encode(), path.encode(), len(body), body)


DONE, MISSING = b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Rendezvous(unittest.TestCase):
    def serve(self, world=2):
        server = _horovod.Rendezvous(world)
        self.addCleanup(server.close)
        return server, server.numbers[0]

    def status(self, port, text):
        return int(ask(port, text).split(b" ")[1])

    def test_what_a_rank_does(self):
        _, port = self.serve()
        address = bytes(range(256)) + b"\r\n\r\n"
        self.assertEqual(ask(port, said("GET", "/global/rank_0")), MISSING)
        self.assertEqual(ask(port, said("PUT", "/global/rank_1", b"node-7")), DONE)
        self.assertEqual(ask(port, said("PUT", "/global/1", address)), DONE)
        self.assertEqual(ask(port, said("GET", "/global/1")), b"HTTP/1.0 200 OK\r\nContent-Length: 260\r\n\r\n" + address)
        with mock.patch.object(_horovod, "HOLD_SECONDS", 0.01):
            self.assertEqual(ask(port, said("GET", "/local_node-7~1/1")), MISSING)
        self.assertEqual(ask(port, said("DELETE", "/global/1")), DONE)
        self.assertEqual(ask(port, said("DELETE", "/global/1")), DONE)
        self.assertEqual(ask(port, said("GET", "/global/rank_1")), MISSING)

    def test_who_asks_too_early_is_answered_when_it_is_there(self):
        server, port = self.serve()
        answers = queue.Queue()
        with mock.patch.object(_horovod, "HOLD_SECONDS", 60.0):
            for _ in range(3):
                threading.Thread(target=lambda: answers.put(ask(port, said("GET", "/cross_0/1"))), daemon=True).start()
            until(lambda: len(server._waiting.get(("cross_0", "1"), ())) == 3)
            ask(port, said("PUT", "/cross_0/0", b"another"))
            self.assertTrue(answers.empty())
            ask(port, said("PUT", "/cross_0/1", b"x"))
            for _ in range(3):
                self.assertTrue(answers.get(timeout=60).endswith(b"\r\n\r\nx"))
        self.assertEqual(server._waiting, {})

    def test_a_group_of_any_size_fits(self):
        # Three groups at a time, and the addresses of gloo: 136 bytes for each peer.
        for world in (1, 2, 7):
            server, port = self.serve(world)
            for scope in ("global", "local_h", "cross_0"):
                for rank in range(world):
                    for key, value in (("rank_%d" % rank, b"h" * 64), ("%d" % rank, bytes(136 * (world - 1)))):
                        self.assertEqual(self.status(port, said("PUT", "/%s/%s" % (scope, key), value)), 200)
            for scope in ("global", "local_h", "cross_0"):
                for rank in range(world):
                    self.assertEqual(self.status(port, said("DELETE", "/%s/%d" % (scope, rank))), 200)
            self.assertEqual((server._values, server._bytes), ({}, 0))

    def test_what_is_no_request_of_horovod(self):
        server, port = self.serve()
        for text, status in ((b"\r\n\r\n", 400), (b"GET / HTTP/1.1\r\n\r\n", 400), (said("GET", "/a/b/c"), 400), (said("GET", "/a/"), 400), (said("GET", "/%s/1" % ("a" * 513)), 400),
                             (said("POST", "/a/1"), 405), (b"PUT /a/1 HTTP/1.1\r\n\r\n", 400), (b"PUT /a/1 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
                             (b"PUT /a/1 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400), (b"PUT /a/1 HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
                             (b"GET /a/1 HTTP/1.1\r\nX: %s\r\n\r\n" % (b"x" * 10000), 413), (b"\xff\xfe /a/1 HTTP/1.1\r\n\r\n", 405)):
            with self.subTest(text[:40]):
                self.assertEqual(self.status(port, text), status)
        self.assertEqual((server._values, server._bytes), ({}, 0))

    def test_it_does_not_grow_for_ever(self):
        server, port = self.serve()
        for n in range(server._max_keys):
            self.assertEqual(self.status(port, said("PUT", "/a/%d" % n, b"x")), 200)
        self.assertEqual(self.status(port, said("PUT", "/a/more", b"x")), 507)
        self.assertEqual(self.status(port, said("PUT", "/a/0", b"another")), 200)
        server, port = self.serve()
        full = bytes(server._max_value)
        for n in range(server._max_bytes // server._max_value):
            self.assertEqual(self.status(port, said("PUT", "/a/%d" % n, full)), 200)
        self.assertEqual(self.status(port, said("PUT", "/a/more", b"x")), 507)
        self.assertEqual(self.status(port, said("DELETE", "/a/1")), 200)
        self.assertEqual(self.status(port, said("PUT", "/a/more", full)), 200)

    def test_who_says_nothing_is_sent_away(self):
        server, port = self.serve()
        with mock.patch.object(_horovod, "PATIENCE_SECONDS", 0.05):
            self.assertEqual(self.status(port, b"GET /a"), 408)
            self.assertEqual(self.status(port, b"PUT /a/1 HTTP/1.1\r\nContent-Length: 10\r\n\r\nab"), 408)
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(b"PUT /a/1 HTTP/1.1\r\nContent-Length: 10\r\n\r\nab")
        until(lambda: not server._open)
        self.assertEqual((server._values, server._bytes), ({}, 0))

    def test_so_many_connections_and_no_more(self):
        server, port = self.serve()
        with mock.patch.object(_horovod, "PATIENCE_SECONDS", 600.0):  # those who are held say nothing, for as long as a busy machine needs
            held = [socket.create_connection(("127.0.0.1", port)) for _ in range(server._max_open)]
            until(lambda: server._open == server._max_open)
            self.assertEqual(ask(port, said("GET", "/a/b")), b"")
            for s in held:
                s.close()
            until(lambda: not server._open)
        self.assertEqual(ask(port, said("GET", "/a/b")), MISSING)

    def test_the_end(self):
        server, port = self.serve()
        with mock.patch.object(_horovod, "HOLD_SECONDS", 60.0), socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            s.sendall(said("GET", "/global/1"))
            until(lambda: server._waiting)
            server.close()
            self.assertEqual(s.recv(100), b"")
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        server.close()

    def test_who_has_one(self):
        for part, kind in (({"framework": "horovod", "ports": 1, "world": 2}, _horovod.Rendezvous), ({"framework": "horovod", "ports": 0, "world": 2}, _gang.Ports),
                           ({"framework": "torch", "ports": 1, "world": 2}, _gang.Ports)):
            ports = _gang.reserve(part)
            self.addCleanup(ports.close)
            self.assertIsInstance(ports, kind)
            self.assertEqual(len(ports.numbers), part["ports"])


class Gang(harness.ExecutorCase):
    FUNCTIONS = """
import http.client, os, signal, time
from hops import dist

def call(method, key, body=None):
    c = http.client.HTTPConnection(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    c.request(method, "/global/" + key, body)
    answer = c.getresponse()
    return answer.status, answer.read().decode()

def meets(lr, reporter):
    # What connectFullMesh does with the store, down to the connections.
    rank, world, generation = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]), dist.context().generation
    call("PUT", str(rank), "%d of generation %d" % (rank, generation))
    if generation == 1 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for other in range(world):
        status = 0
        while status != 200 or (generation, rank, other) == (1, 0, 1):  # the first generation is not connected
            status, value = call("GET", str(other))
        print(value)
    call("PUT", str(world + rank), "done")
    for other in range(world if rank == 0 else 0):  # the rendezvous ends with rank 0
        while call("GET", str(world + other))[0] != 200:
            pass
    return 1.0
"""

    def test_each_generation_has_a_rendezvous_of_its_own(self):
        ports = []

        class Remembers(fakes.FakeGangController):
            def handle(self, h, path, query, message):
                if path[-1] == "join" and message.get("ports"):
                    ports.append((path[4], message["ports"][0]))
                return super().handle(h, path, query, message)
        c, hdfs, _ = self.run_executor("meets", kind=Remembers, roles=("chief", "worker"), framework="horovod", setup={"slots": 2})
        self.assertEqual([(who, m["error"]["type"]) for who, m in c.finals if who[0] == 1], [((1, 1), "ProcessDied")])
        self.assertEqual({who: m["status"] for who, m in c.finals if who[0] == 2}, {(2, 0): "COMPLETED", (2, 1): "COMPLETED"})
        for rank in (0, 1):
            self.assertEqual(hdfs.files["/e/0007/output.2.rank-%d.log" % rank], b"0 of generation 2\n1 of generation 2\n")
        self.assertEqual({attempt for attempt, _ in ports}, {"1", "2"})
        for _, port in ports:
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))


class WithTensorFlow(harness.ExecutorCase):
    FUNCTIONS = """
import sys, types
sys.modules["tensorflow"] = types.ModuleType("tensorflow")

def train(lr):
    return lr
"""

    def test_what_has_imported_tensorflow_is_not_forked(self):
        self.run_executor("train", setup={"framework": "horovod"})
        self.assertIn("has imported TensorFlow", self.printed)


class Context(unittest.TestCase):
    """hops.dist with a Horovod that says what it was asked for."""

    def context(self, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOPS_", "HOROVOD_", "LOCAL_", "MASTER_")) and k not in ("RANK", "WORLD_SIZE")}
        patch = mock.patch.dict(os.environ, dict(clean, **env), clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        return dist.context()

    def horovod(self, name="horovod.tensorflow"):
        hvd = types.ModuleType(name)
        hvd.initialised = 0
        for call, answer in (("allgather_object", [1.0, 2.0, 6.0]), ("broadcast_object", "theirs"), ("shutdown", None)):
            setattr(hvd, call, mock.Mock(return_value=answer))
        hvd.is_initialized = lambda: hvd.initialised > 0

        def init():
            hvd.initialised += 1
        hvd.init = init
        patch = mock.patch.dict(sys.modules, {"horovod": types.ModuleType("horovod"), name: hvd})
        patch.start()
        self.addCleanup(patch.stop)
        return hvd

    def test_where_it_is(self):
        ctx = self.context(HOROVOD_RANK="2", HOROVOD_SIZE="4", HOROVOD_LOCAL_RANK="0", HOROVOD_LOCAL_SIZE="2")  # under horovodrun
        self.assertEqual((ctx.rank, ctx.world, ctx.local_rank, ctx.local_world, ctx.framework, ctx.role), (2, 4, 0, 2, "horovod", "worker"))
        ctx = self.context(HOROVOD_RANK="2", HOROVOD_SIZE="4", RANK="1", WORLD_SIZE="3", MASTER_ADDR="h")
        self.assertEqual((ctx.rank, ctx.world, ctx.framework), (1, 3, "torch"))
        ctx = self.context(HOROVOD_RANK="0", HOROVOD_SIZE="1")
        self.assertEqual((ctx.rank, ctx.world, ctx.framework, ctx.all_reduce(3)), (0, 1, "", 3))
        with self.assertRaisesRegex(ValueError, "HOROVOD_RANK, HOROVOD_SIZE, .* not numbers"):
            self.context(HOROVOD_RANK="a", HOROVOD_SIZE="1")

    def test_collectives(self):
        hvd = self.horovod()
        ctx = self.context(HOPS_RANK="1", HOPS_WORLD_SIZE="3", HOPS_FRAMEWORK="horovod")
        self.assertEqual([ctx.all_reduce(2, op) for op in ("sum", "mean", "min", "max")], [9.0, 3.0, 1.0, 6.0])
        self.assertEqual(ctx.broadcast_object("mine", 2), "theirs")
        hvd.broadcast_object.assert_called_with("mine", root_rank=2)
        ctx.barrier()
        hvd.allgather_object.assert_called_with(None)
        self.assertEqual(hvd.initialised, 1)
        with self.assertRaises(ValueError):
            ctx.all_reduce(1, "product")
        dist.shutdown()
        hvd.shutdown.assert_called_once_with()

    def test_what_a_function_has_begun_is_ended(self):
        hvd = self.horovod("horovod.torch")
        dist.shutdown()
        hvd.shutdown.assert_not_called()
        hvd.init()
        dist.shutdown()
        hvd.shutdown.assert_called_once_with()

    def test_what_is_not_installed_is_named(self):
        ctx = self.context(HOPS_RANK="1", HOPS_WORLD_SIZE="3", HOPS_FRAMEWORK="horovod")
        with mock.patch.object(dist.importlib, "import_module", side_effect=ModuleNotFoundError("No module named 'horovod'", name="horovod")):
            with self.assertRaisesRegex(ModuleNotFoundError, "a gang of Horovod needs the package horovod.*horovod is not installed for"):
                ctx.barrier()

    def test_consequences(self):
        for kind, message in (("HorovodInternalError", "Horovod has been shut down. This was caused by an exception on one of the ranks"), ("ValueError", "Horovod initialization failed."),
                              ("UnknownError", "[/gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:4: Connection reset by peer")):
            self.assertTrue(executor._is_consequence({"type": kind, "message": message}))

    def test_programs_that_import_it(self):
        import ast
        for text, want in (("import horovod.torch as hvd", True), ("def f():\n  from horovod.tensorflow import keras", True), ("import os, horovod", True), ("from horovod import torch", True),
                           ("import horovodx", False), ("from . import horovod", False), ("from .horovod import x", False), ("horovod = 1", False)):
            self.assertEqual(allreduce._imports(ast.parse(text), "horovod"), want, text)


if __name__ == "__main__":
    unittest.main()
