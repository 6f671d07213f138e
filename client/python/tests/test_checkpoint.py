"""Checkpoints: whole or not there, whatever breaks on the way."""
import json
import os
import re
import sys
import tempfile
import threading
import unittest
import zlib
from unittest import mock

from harness import ROOT, ExecutorCase

import fakenumpy
import fakes
from hops import _http, _local, _run, _stream, _tensors, _webhdfs, checkpoint

GOLDEN = os.path.join(ROOT, "..", "..", "training", "checkpoint", "testdata")


class Trial(_run.Trial):
    """A trial of this process. refuse is what its controller says to commits, in order."""

    def __init__(self, fs, root="/e", attempt=2, committed=(), blobs=True):
        dirs = {"checkpoints": "%s/0007/checkpoints/%d" % (root, attempt), "tensorboard": root}
        if blobs:
            dirs["blobs"] = root + "/.blobs"
        super().__init__({"trial": "0007", "attempt": attempt, "params": {}, "dirs": dirs, "checkpoints": list(committed)}, None, fs)
        self.refuse, self.commits = [], []

    def commit_checkpoint(self, step, uri, files, metric):
        if self.refuse:
            raise self.refuse.pop(0)
        self.commits.append((step, uri, files, metric))
        _local.Trial.commit_checkpoint(self, step, uri, files, metric)


class Tree:
    """Files in memory. writes are the paths that were created, moves those that files were renamed to. at is called with each path that is about to be changed."""

    def __init__(self):
        self.files, self.writes, self.moves, self.directories, self.at, self.lock = {}, [], [], set(), lambda path: None, threading.RLock()

    def create(self, path, data=b"", overwrite=False):
        self.at(path)
        whole = bytes(data) if isinstance(data, (bytes, bytearray)) else b"".join(bytes(p) for p in data)
        with self.lock:
            self.files[path] = whole
            self.writes.append(path)

    def blobs(self):
        """The blobs that were made since this was called before."""
        made = [p for p in self.writes + self.moves if p.startswith("/e/.blobs/")]
        del self.writes[:], self.moves[:]
        return made

    def read(self, path, offset=0, length=None):
        with self.lock:
            if path not in self.files:
                raise FileNotFoundError(path)
            return self.files[path][offset:None if length is None else offset + length]

    def list(self, path):
        with self.lock:
            below = [p[len(path) + 1:] for p in self.files if p.startswith(path + "/")]
            if not below:
                raise FileNotFoundError(path)
            return [{"pathSuffix": n.split("/")[0], "type": "DIRECTORY" if "/" in n else "FILE", "length": len(self.files.get(path + "/" + n, b""))} for n in sorted(below)]

    def delete(self, path, recursive=False):
        self.at(path)
        with self.lock:
            gone = [p for p in self.files if p == path or p.startswith(path + "/")]
            for p in gone:
                del self.files[p]
            return bool(gone)

    def exists(self, path):
        return any(p == path or p.startswith(path + "/") for p in self.files) or path in self.directories

    def mkdirs(self, path):
        self.at(path)
        self.directories.add(path)
        return True

    def rename(self, source, destination, options=None):
        self.at(destination)
        with self.lock:
            if source in self.files:
                if not self.exists(os.path.dirname(destination)):
                    raise FileNotFoundError("rename destination parent of %s not found" % destination)
                if destination in self.files and options != "OVERWRITE":
                    return False
                self.files[destination] = self.files.pop(source)
                self.moves.append(destination)
                return True
            if options:
                raise FileNotFoundError(source)
            moved = [p for p in self.files if p.startswith(source + "/")]
            if not moved or any(p.startswith(destination + "/") for p in self.files):
                return False
            for p in moved:
                self.files[destination + p[len(source):]] = self.files.pop(p)
            return True


class Crash(BaseException):
    """The process dies here."""


class CheckpointCase(unittest.TestCase):
    def setUp(self):
        self.before = sys.modules.get("numpy")
        sys.modules["numpy"] = fakenumpy
        self.addCleanup(self._restore)
        self.tree = Tree()
        self.trial = self.begin()

    def _restore(self):
        _run.set_current(None)
        checkpoint._states.clear()
        if self.before is None:
            del sys.modules["numpy"]
        else:
            sys.modules["numpy"] = self.before

    def begin(self, *args, **more):
        checkpoint._states.clear()
        trial = Trial(self.tree, *args, **more)
        _run.set_current(trial)
        return trial

    def array(self, fill, size=100_000):
        return fakenumpy.ndarray(bytearray([fill]) * (4 * size))

    def model(self, head=1):
        # Two parts of a MiB and more, one of which does not change.
        return {"backbone": {"a": self.array(7, 300_000)}, "head": {"w": self.array(head, 300_000), "b": self.array(head, 3)}, "epoch": head, "rate": float("inf"), "betas": (0.9, 1)}


class Saving(CheckpointCase):
    def test_what_is_saved_comes_back(self):
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(os.path.join(d, "v"))
            with open(os.path.join(d, "v", "x"), "w") as f:
                f.write("hi")
            for step, (obj, form) in enumerate([
                (b"raw", "bytes"), ({"a.bin": b"1", "b.bin": b"22"}, "files"), ({"epoch": 3, "l": [1, None]}, "json"), ({"t": (1, 2)}, "pickle"),
                (self.model(), "tensors"), ({1: self.array(1), "s": [self.array(2, 0)]}, "tensors"),
            ], 1):
                for wait in (True, False):
                    n = 10 * step + wait
                    with self.subTest(form=form, wait=wait):
                        self.begin()
                        found = checkpoint.save(obj, n, wait=wait)
                        directory = found if wait else found.wait(60)
                        self.assertEqual(directory, "/e/0007/checkpoints/2/step-%d" % n)
                        self.assertEqual(json.loads(self.tree.files[directory + "/MANIFEST.json"])["format"], form)
                        self.assertEqual(checkpoint.load(), (n, obj))
                        self.assertEqual(checkpoint.latest(), (n, directory))
            checkpoint.save(path=d, step=100)
            with open(os.path.join(checkpoint.load()[1], "v", "x")) as f:
                self.assertEqual(f.read(), "hi")

    def test_formats_that_are_asked_for(self):
        checkpoint.save({"w": self.array(3)}, 1, format="safetensors")
        self.assertIn("/e/0007/checkpoints/2/step-1/model.safetensors", self.tree.files)
        self.assertEqual(checkpoint.load()[1], {"w": self.array(3)})
        with self.assertRaisesRegex(TypeError, "takes a dict of names to tensors"):
            checkpoint.save({"w": 1}, 2, format="safetensors")
        with self.assertRaisesRegex(ValueError, "the formats are tensors, safetensors"):
            checkpoint.save({}, 2, format="hdf5")
        with self.assertRaisesRegex(ValueError, "cannot name a file"):
            checkpoint.save({"../x": b""}, 2)
        with self.assertRaisesRegex(ValueError, "steps must rise"):
            checkpoint.save(b"", 1)
        with self.assertRaisesRegex(checkpoint.CheckpointError, "no checkpoint of step 5; there are those of 1"):
            checkpoint.load(5)

    def test_a_shard_that_has_not_changed_is_not_written_again(self):
        checkpoint.save(self.model(1), 1)
        blobs = self.tree.blobs()
        self.assertEqual(len(blobs), 2)
        for p in blobs:
            self.assertRegex(p, r"^/e/\.blobs/([0-9a-f]{2})/\1[0-9a-f]{62}-0007-2-1$")
        checkpoint.save(self.model(2), 2)
        self.assertEqual([p[-9:] for p in self.tree.blobs()], ["-0007-2-2"])
        self.assertEqual(checkpoint.load(), (2, self.model(2)))
        self.assertEqual(checkpoint.load(1), (1, self.model(1)))
        # Another attempt on another node goes on from it.
        self.begin(attempt=3, committed=self.trial.committed)
        self.assertEqual(checkpoint.load(), (2, self.model(2)))
        checkpoint.save(self.model(3), 3)
        self.assertEqual([p[-9:] for p in self.tree.blobs()], ["-0007-3-3"])

    def test_what_most_likely_changed_is_hashed_on_its_way_out(self):
        save = lambda model, step: checkpoint.save(model, step, wait=False).wait(60)  # noqa: E731 - copies, which nobody changes
        save(self.model(1), 1)
        self.tree.blobs()
        hashed = []
        with mock.patch.object(_stream, "sha256", lambda source, real=_stream.sha256: hashed.append(source.size) or real(source)):
            save(self.model(2), 2)
            self.assertEqual(len(hashed), 1)  # the backbone, whose samples are as before
            self.assertEqual([p[-9:] for p in self.tree.blobs()], ["-0007-2-2"])
            # Bytes that no sample has looked at.
            model = self.model(2)
            model["head"]["w"].data[-5:] = b"xxxxx"
            save(model, 3)
            self.assertEqual(len(hashed), 3)
            self.assertEqual([p[-9:] for p in self.tree.blobs()], ["-0007-2-3"])
        self.assertEqual(checkpoint.load(), (3, model))
        self.assertEqual(checkpoint.load(2), (2, self.model(2)))
        self.assertFalse([p for p in self.tree.files if ".tmp" in p])
        # A name whose rename was done and not answered, and one that an earlier try has left.
        self.tree.files["/t/a"] = b"1"
        checkpoint._move(self.tree, "/t/a", "/e/.blobs/zz/b")
        checkpoint._move(self.tree, "/t/a", "/e/.blobs/zz/b")
        self.tree.files["/t/a"] = b"2"
        checkpoint._move(self.tree, "/t/a", "/e/.blobs/zz/b")
        self.assertEqual(self.tree.files["/e/.blobs/zz/b"], b"2")
        with self.assertRaises(FileNotFoundError):
            checkpoint._move(self.tree, "/t/a", "/e/.blobs/zz/c")

    def test_a_tensor_that_changes_while_it_is_saved_is_no_checkpoint(self):
        checkpoint.save(self.model(1), 1)
        state = self.model(2)

        def change(path):  # as another thread would, between the hash of the bytes and their way out
            if path.endswith(".tmp/0002.safetensors"):
                state["head"]["w"].data[:4] = b"xxxx"

        self.tree.at = change
        with self.assertRaisesRegex(checkpoint.CheckpointError, "^the checkpoint of step 2 was not saved: a tensor of it was changed"):
            checkpoint.save(state, 2)
        self.tree.at = lambda path: None
        self.assertEqual([c[0] for c in self.trial.commits], [1])
        self.assertEqual(checkpoint.load(), (1, self.model(1)))

    def test_a_shard_that_went_meanwhile_is_written_anew(self):
        checkpoint.save(self.model(1), 1)
        self.trial.refuse = [_run.CheckpointIncomplete("blob x is of no committed checkpoint any more")]
        checkpoint.save(self.model(2), 2)
        self.assertEqual({f["blob"][-9:] for f in self.trial.commits[-1][2] if "blob" in f}, {"-0007-2-2"})
        self.assertEqual(checkpoint.load(), (2, self.model(2)))
        # Without a shard of others there is nothing to write anew.
        self.trial.refuse = [_run.CheckpointIncomplete("tree.json is not there")]
        with self.assertRaisesRegex(OSError, "tree.json is not there"):
            checkpoint.save({"a": self.array(9)}, 3)

    def test_a_backbone_that_another_trial_has_written_is_found(self):
        checkpoint.save(self.model(1), 1)
        self.tree.blobs()
        trial = self.begin(attempt=5)
        trial.id = "0008"
        checkpoint.save(self.model(2), 1)
        self.assertEqual([p[-9:] for p in self.tree.blobs()], ["-0008-5-1"])

    def test_manifests_are_those_of_the_controller(self):
        def keys(m):
            return {k: type(v) for k, v in m.items()}, {frozenset(f) for f in m["files"]}

        checkpoint.save({"a": 1}, 6)
        checkpoint.save(self.model(1), 7)
        for name, step in (("plain", 6), ("tensors", 7)):
            with open(os.path.join(GOLDEN, name + ".json")) as f:
                golden = json.load(f)
            made = json.loads(self.tree.files["/e/0007/checkpoints/2/step-%d/MANIFEST.json" % step])
            self.assertEqual(keys(made), keys(golden))
            self.assertEqual((made["trial"], made["attempt"], made.get("blobs")), (golden["trial"], golden["attempt"], golden.get("blobs")))

    def test_metrics_and_the_best(self):
        self.assertIsNone(checkpoint.latest())
        self.assertIsNone(checkpoint.load())
        self.assertIsNone(checkpoint.best())
        for step, metric in ((1, 0.5), (2, 0.9), (3, None), (4, 0.1)):
            checkpoint.save(b"", step, metric=metric)
        self.assertEqual(checkpoint.best()[0], 2)
        self.assertEqual(checkpoint.best("min")[0], 4)
        self.assertEqual([c["step"] for c in checkpoint.list()], [1, 2, 3, 4])
        with self.assertRaisesRegex(ValueError, "NaN"):
            checkpoint.save(b"", 5, metric=float("nan"))

    def test_what_all_ranks_read_is_the_same(self):
        before = {"step": 1, "uri": "/e/0007/checkpoints/1/step-1"}
        for rank in (0, 1):
            trial = self.begin(committed=[before])
            trial.gang, trial.rank = {"rank": rank}, rank
            self.assertEqual(checkpoint._same_everywhere(None), before["uri"])
            checkpoint.save(self.model(), 2)
            self.assertEqual(checkpoint._same_everywhere("hdfs://n/e/step-2"), "/e/step-2")
            with self.assertRaisesRegex(checkpoint.CheckpointError, "no checkpoint of step 3; there are those of 1.*" + ("rank 1 does not know" if rank else "2$")):
                checkpoint.load(3)
            if rank == 0:
                with self.assertRaisesRegex(checkpoint.CheckpointError, "the other ranks would read an older one"):
                    checkpoint._same_everywhere(None)

    def test_there_are_not_too_many_files(self):
        with self.assertRaisesRegex(ValueError, "at most 1000 files, and these are 1001"):
            checkpoint.save({"f%d" % i: b"" for i in range(1001)}, 1)
        self.assertEqual(self.tree.writes, [])

    def test_restore_names_checkpoint_trial_and_remedy(self):
        class Model:
            def state_dict(self):
                return {"w": [1]}

            def load_state_dict(self, state):
                if state != {"w": [1]}:
                    raise RuntimeError("Error(s) in loading:\n\tsize mismatch for w")

        self.assertIsNone(checkpoint.restore(Model()))
        checkpoint.save(Model(), 1)
        self.assertEqual(checkpoint.restore(Model()), 1)
        checkpoint.save({"model": {"w": [1]}, "optimizer": {"w": [1]}}, 2)
        self.assertEqual(checkpoint.restore(Model(), Model()), 2)
        checkpoint.save({"w": [2]}, 3)
        with self.assertRaisesRegex(checkpoint.CheckpointMismatch, "^checkpoint of step 3 of trial 0007 does not fit the Model: Error.s. in loading: size mismatch for w .build"):
            checkpoint.restore(Model())


class Torn(CheckpointCase):
    def test_what_is_not_what_was_written_is_named(self):
        def cut(path):
            self.tree.files[path] = self.tree.files[path][:-1]

        def flip(path):
            data = bytearray(self.tree.files[path])
            data[len(data) // 2] ^= 1
            self.tree.files[path] = bytes(data)

        step = "/e/0007/checkpoints/2/step-1"
        for what, harm, want in (
            ("MANIFEST", self.tree.files.pop, "MANIFEST.json is not there"), ("MANIFEST", cut, "MANIFEST.json cannot be read"),
            ("tree", self.tree.files.pop, "tree.json is not there"), ("tree", cut, "tree.json has .* bytes, and .* were written"), ("tree", flip, "tree.json is not what was written .CRC-32"),
            ("blob", self.tree.files.pop, "0001.safetensors is not there"), ("blob", cut, "0001.safetensors has"), ("blob", flip, "0001.safetensors is not what was written"),
        ):
            with self.subTest(what=what, want=want):
                self.tree.files.clear()
                self.begin()
                checkpoint.save({"a": self.array(1)}, 1)
                path = {"MANIFEST": step + "/MANIFEST.json", "tree": step + "/tree.json", "blob": next(p for p in self.tree.files if ".blobs" in p)}[what]
                harm(path)
                with self.assertRaisesRegex(checkpoint.CheckpointError, want):
                    checkpoint.load()

    def test_manifests_that_lie_are_named(self):
        step = "/e/0007/checkpoints/2/step-1/MANIFEST.json"
        checkpoint.save({"a": self.array(1)}, 1)
        good = json.loads(self.tree.files[step])
        for change, want in (
            (lambda m: m.update(version=4), "of version 4"), (lambda m: m.update(files=[]), "it has no files"), (lambda m: m.update(files={"name": "x"}), "cannot be read"),
            (lambda m: m["files"][1].update(size=-1), "it has no files"), (lambda m: m["files"][1].update(size=1 << 62), "no such memory"),
            (lambda m: m["files"][1].update(size=1 << 20), "0001.safetensors has .* bytes, and 1048576 were written"),
            (lambda m: m["files"][1].update(blob="../../x"), "it has no files"), (lambda m: m["files"][1].pop("blob"), "cannot be read"),
            (lambda m: m["files"][1].update(blob="0" * 64 + "-0007-2-1"), "0001.safetensors is not there"), (lambda m: m["files"].pop(1), "in none of its shards"),
            (lambda m: m["files"].pop(0), "has no file tree.json"),
        ):
            made = json.loads(json.dumps(good))
            change(made)
            self.tree.files[step] = json.dumps(made).encode()
            with self.assertRaisesRegex(checkpoint.CheckpointError, want):
                checkpoint.load()

    def test_a_crash_at_any_step_leaves_the_old_or_the_new_one(self):
        """The process dies before each change of the filesystem in turn, and once after the last."""
        for local in (False, True):
            for k in range(100):
                self.tree = Tree()
                self.trial = self.begin(blobs=not local)
                checkpoint.save(self.model(1), 1)
                left = [k]

                def at(path):
                    if not left[0]:
                        raise Crash()
                    left[0] -= 1

                self.tree.at = at
                crashed = False
                try:
                    checkpoint.save(self.model(2), 2)
                except Crash:
                    crashed = True
                self.tree.at = lambda path: None
                # What counts is what the controller has recorded.
                want = 1 if crashed else 2
                self.assertEqual(self.trial.committed[-1]["step"], want)
                self.begin(attempt=3, committed=self.trial.committed, blobs=not local)
                self.assertEqual(checkpoint.load(), (want, self.model(want)))
                checkpoint.save(self.model(2), 2 if crashed else 3)
                self.assertEqual(checkpoint.load()[1], self.model(2))
                if not crashed:
                    break
            self.assertGreater(k, 4)

    def test_a_datanode_that_writes_late_hurts_nothing(self):
        """Each file is written by two datanodes: one that was given up and makes its half of it when the other one's is committed long since,
        and that other one."""
        for wait in (True, False):
            self.tree = Tree()
            self.trial = self.begin()
            late = []

            def create(path, data=b"", overwrite=False, make=self.tree.create):
                make(path, data, overwrite)
                late.append(path)

            self.tree.create = create
            for step in (1, 2, 3):
                for path in late:
                    self.tree.files[path] = b"half"
                saved = checkpoint.save(self.model(step), step, wait=wait)
                saved if wait else saved.wait(60)
            for path in late:
                self.tree.files[path] = b"half"
            self.begin(attempt=3, committed=self.trial.committed)
            for step in (1, 2, 3):
                self.assertEqual(checkpoint.load(step), (step, self.model(step)))

    def test_what_may_be_recorded_is_not_replaced(self):
        """An exception of a signal's handler ends the wait for the controller's answer."""
        class Interrupted(Exception):
            pass

        class Channel:
            def __init__(self):
                self.sent, self.answers = [], [Interrupted()]

            def send(self, message):
                self.sent.append(message["checkpoint"]["step"])

            def receive(self, timeout=None):
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return {"checkpoint": answer}

        channel = self.trial._channel = Channel()
        self.trial.commit_checkpoint = lambda *commit: _run.Trial.commit_checkpoint(self.trial, *commit)
        with self.assertRaises(Interrupted):
            checkpoint.save({"a": 1}, 1)
        before = dict(self.tree.files)
        with self.assertRaisesRegex(ValueError, "steps must rise"):
            checkpoint.save({"a": 2}, 1)
        self.assertEqual(self.tree.files, before)
        # The answer to the first comes late, and says nothing of the second.
        channel.answers = [{"step": 1, "keep": [1]}, {"step": 2, "error": "blob x is not there", "code": "CHECKPOINT_INCOMPLETE"}]
        with self.assertRaises(_run.CheckpointIncomplete):
            checkpoint.save({"a": 2}, 2)
        channel.answers = [{"step": 2, "keep": [1, 2]}]
        checkpoint.save({"a": 3}, 2)  # that one was refused
        self.assertEqual(checkpoint.load(), (2, {"a": 3}))
        self.assertEqual(channel.sent, [1, 2, 2])

    def test_a_save_that_fails_leaves_nothing(self):
        def full(path):
            if path.endswith("0002.safetensors"):
                raise OSError("no space left")

        self.tree.at = full
        with self.assertRaisesRegex(OSError, "no space"):
            checkpoint.save(self.model(1), 1)
        self.assertFalse([p for p in self.tree.files if ".blobs" not in p])

    def test_shards_that_are_none_are_refused(self):
        good = bytearray(b"".join(bytes(b) for b in _tensors.Shard([("w", _tensors.Tensor(self.array(1, 4)))]).buffers()))
        self.assertEqual(_tensors.read_shard(good, "numpy")["w"], self.array(1, 4))
        head = json.loads(good[8:8 + int.from_bytes(good[:8], "little")])
        for change in ({"data_offsets": [0, 17]}, {"data_offsets": [4, 20]}, {"data_offsets": [-4, 12]}, {"shape": [5]}, {"shape": [-4]}):
            text = json.dumps({"w": dict(head["w"], **change)}).encode()
            with self.assertRaises(ValueError):
                _tensors.read_shard(bytearray(len(text).to_bytes(8, "little") + text + bytes(16)), "numpy")
        for data in (b"", b"123", b"\xff" * 8, good[:20]):
            with self.assertRaises(ValueError):
                _tensors.read_shard(bytearray(data), "numpy")


class Background(CheckpointCase):
    def hold(self):
        """Writes wait for the event that is returned; the other one says that one does."""
        waits, go = threading.Event(), threading.Event()

        def at(path):
            waits.set()
            go.wait(60)

        self.tree.at = at
        self.addCleanup(go.set)
        return waits, go

    def test_the_object_may_change_as_soon_as_save_returns(self):
        waits, go = self.hold()
        state = self.model(1)
        handle = checkpoint.save(state, 1, wait=False)
        waits.wait(60)
        self.assertFalse(handle.done())
        with self.assertRaises(TimeoutError):
            handle.wait(0.001)
        state["head"]["w"].data[:4] = b"xxxx"
        state["epoch"] = 99
        go.set()
        handle.wait(60)
        self.assertEqual(checkpoint.load(), (1, self.model(1)))

    def test_one_is_in_flight_and_the_next_save_waits(self):
        waits, go = self.hold()
        first = checkpoint.save(self.model(1), 1, wait=False)
        waits.wait(60)
        asked, begun = threading.Event(), []

        def second():
            asked.set()
            begun.append(checkpoint.save(self.model(2), 2, wait=False))

        t = threading.Thread(target=second)
        t.start()
        asked.wait(60)
        self.assertEqual((begun, first.done()), ([], False))
        go.set()
        t.join(60)
        self.assertTrue(first.done())
        begun[0].wait(60)
        self.assertEqual([c[0] for c in self.trial.commits], [1, 2])
        self.assertEqual(checkpoint.load(), (2, self.model(2)))

    def test_what_goes_wrong_is_told_once(self):
        def fails():
            self.trial.refuse = [_run.CheckpointRefused("disk is full")]
            n = len(self.trial.committed) + 100
            handle = checkpoint.save(b"x", n, wait=False)
            handle._over.wait(60)
            return handle

        with self.assertRaisesRegex(OSError, "^disk is full"):
            fails().wait()
        checkpoint.save(b"x", 1)
        fails()
        with self.assertRaisesRegex(checkpoint.CheckpointError, "the checkpoint of step 101 of trial 0007 was not saved: disk is full"):
            checkpoint.save(b"x", 2)
        checkpoint.save(b"x", 2)
        fails()
        with self.assertRaisesRegex(checkpoint.CheckpointError, "was not saved: disk is full"):
            checkpoint.finish()
        checkpoint.finish()
        fails()
        with self.assertRaisesRegex(checkpoint.CheckpointError, "was not saved"):
            checkpoint.load()

    def test_a_fork_leaves_the_save_to_its_parent(self):
        waits, go = self.hold()
        handle = checkpoint.save(self.model(1), 1, wait=False)
        waits.wait(60)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                checkpoint.finish()  # nothing of its own
                try:
                    handle.wait()
                except RuntimeError:
                    code = 0 if handle.done() else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        go.set()
        handle.wait(60)
        self.assertEqual([c[0] for c in self.trial.commits], [1])

    def test_memory_of_the_copy_is_used_again(self):
        checkpoint.save(self.model(1), 1, wait=False).wait(60)
        first = {n: id(t.value) for n, t in checkpoint._state().copies.items()}
        checkpoint.save(self.model(2), 2, wait=False).wait(60)
        self.assertEqual({n: id(t.value) for n, t in checkpoint._state().copies.items()}, first)
        self.assertEqual(checkpoint.load(), (2, self.model(2)))


class Streams(unittest.TestCase):
    def test_a_source_is_written_in_chunks_or_with_its_length(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        fs = _webhdfs.WebHDFS([hdfs.url], "ann")
        data = os.urandom(5 << 20)
        for source in (_stream.Buffers([data[:7], b"", memoryview(data)[7:]]), _stream.Written(lambda out: [out.write(data[i:i + 70_000]) for i in range(0, len(data), 70_000)])):
            counted = _stream.Counted(source)
            fs.create("/x", counted, overwrite=True)
            self.assertEqual(hdfs.files["/x"], data)
            self.assertEqual((counted.length, counted.crc32), (len(data), zlib.crc32(data)))

    def test_a_source_is_sent_again_when_a_datanode_is_lost(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        fs = _webhdfs.WebHDFS([hdfs.url], "ann")
        data = os.urandom(3 << 20)
        for source in (_stream.Buffers([data]), _stream.Written(lambda out: out.write(data))):
            hdfs.broken_creates = 2
            counted = _stream.Counted(source)
            fs.create("/x", counted)
            self.assertEqual((hdfs.files.pop("/x"), hdfs.broken_creates), (data, 0))
            self.assertEqual((counted.length, counted.crc32), (len(data), zlib.crc32(data)))

    def test_what_a_server_says_is_one_line(self):
        body = json.dumps({"RemoteException": {"exception": "IOException", "message": "no pipeline: a\nb;\n\nc"}}).encode("ascii")
        self.assertEqual(_webhdfs._problem(_http.Response(403, {}, body)), ("IOException", "no pipeline: a; b; c"))

    def test_what_the_writer_raises_comes_out(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        fs = _webhdfs.WebHDFS([hdfs.url], "ann")

        def write(out):
            out.write(bytes(3 << 20))
            raise OSError("the object cannot be written")

        with self.assertRaisesRegex(OSError, "the object cannot be written"):
            fs.create("/x", _stream.Written(write))

    def test_parallel_keeps_the_order_and_raises(self):
        self.assertEqual(_stream.parallel(lambda x: x * 2, range(20), 3), [2 * i for i in range(20)])
        self.assertEqual(_stream.parallel(str, [], 3), [])
        with self.assertRaises(ZeroDivisionError):
            _stream.parallel(lambda x: 1 // x, [1, 2, 0, 3], 3)


class InATrial(ExecutorCase):
    FUNCTIONS = """
    from hops import checkpoint

    def asynchronous(lr, budget, reporter):
        saved = checkpoint.load()
        for epoch in range((saved[0] if saved else 0) + 1, budget + 1):
            reporter.broadcast(lr * epoch, step=epoch)
            checkpoint.save({"epoch": epoch}, step=epoch, wait=False)
            assert not checkpoint.requested()
        return lr

    def loses_its_last(lr, budget, reporter):
        reporter.broadcast(lr, step=1)
        checkpoint.save(b"x", step=1)
        checkpoint.save({"refused.bin": b"x"}, step=2, wait=False)
        return lr
    """

    def test_saves_that_are_not_waited_for_are_all_committed(self):
        for mode in ("fork", "spawn"):
            with self.subTest(mode=mode):
                c, hdfs, _ = self.run_executor("asynchronous", mode=mode)
                self.assertEqual([m["step"] for _, m in c.checkpoints], [1, 2, 3])
                self.assertEqual([step for _, step, _ in c.reports], [1, 2, 3])
                self.assertEqual(c.finals[0][1]["status"], "COMPLETED")
                self.assertEqual([m["metric"] for _, m in c.checkpoints], [0.5, 1.0, 1.5])

    def test_a_checkpoint_that_is_lost_at_the_end_fails_the_trial(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        hdfs.refuse = "refused.bin"
        c, _, _ = self.run_executor("loses_its_last", hdfs=hdfs)
        final = c.finals[0][1]
        self.assertEqual((final["status"], final["error"]["type"]), ("FAILED", "CheckpointError"))
        self.assertRegex(final["error"]["message"], "the checkpoint of step 2 of trial 0007 was not saved: .*refused")
        self.assertEqual([m["step"] for _, m in c.checkpoints], [1])


class Locally(unittest.TestCase):
    def test_only_whole_ones_are_found(self):
        with tempfile.TemporaryDirectory() as d:
            checkpoint._states.clear()
            self.addCleanup(_run.set_current, None)
            self.addCleanup(checkpoint._states.clear)
            _run.set_current(_local.Trial(directory=d))
            checkpoint.save({"a": 1}, 1)
            checkpoint.save({"a": 2}, 2)
            for torn in ("step-3.tmp", "step-5.0123abcd.tmp", "step-4", "step-2.old"):  # died before the rename, in a removal, in a replacement
                os.mkdir(os.path.join(d, "checkpoints", torn))
            _run.set_current(_local.Trial(directory=d))
            self.assertEqual(checkpoint.load(), (2, {"a": 2}))
            self.assertEqual([c["step"] for c in checkpoint.list()], [1, 2])
            checkpoint.save({"a": 3}, 2)  # a run that begins anew
            self.assertEqual(checkpoint.load(), (2, {"a": 3}))
            self.assertTrue(re.match(r"step-[124]$|step-3.tmp$", n) for n in os.listdir(os.path.join(d, "checkpoints")))

    def test_ranks_of_torchrun_share_a_directory(self):
        self.addCleanup(_run.set_current, None)
        self.addCleanup(checkpoint._states.clear)
        with tempfile.TemporaryDirectory() as d:
            for rank in ("1", "0"):
                with mock.patch.dict(os.environ, RANK=rank, WORLD_SIZE="2"):
                    _run.set_current(_local.Trial(directory=d))
                self.assertEqual(checkpoint.save({"a": 1}, 1), None if rank == "1" else os.path.join(d, "checkpoints", "step-1"))
                self.assertEqual(os.path.exists(os.path.join(d, "checkpoints")), rank == "0")
            with mock.patch.dict(os.environ, RANK="one", WORLD_SIZE="2"):
                self.assertEqual(_local.Trial(directory=d).rank, 0)


if __name__ == "__main__":
    unittest.main()
