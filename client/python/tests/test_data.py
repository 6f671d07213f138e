"""hops.data: every sample exactly once, in an order that the seed makes, whatever fails or stops on the way."""
import importlib.util
import io
import json
import os
import pickle
import random
import struct
import sys
import tarfile
import types
import unittest
import unittest.mock

from harness import HERE, fakes
from hops import _many, _order, _parquet, _shards, _webhdfs, data  # noqa: F401 (_parquet is imported before modules are taken away)


class Order(unittest.TestCase):
    def test_is_a_permutation(self):
        for n in (0, 1, 2, 3, 4, 5, 100, 1023, 1024, 1025):
            for seed in (0, 1, "a/3"):
                p = _order.Permutation(n, seed)
                self.assertEqual(sorted(p[i] for i in range(n)), list(range(n)))

    def test_is_the_same_everywhere(self):
        """These values are those of every version: a state that was saved goes on in the same order."""
        self.assertEqual([_order.Permutation(10, 1)[i] for i in range(10)], GOLDEN_10)
        self.assertEqual([_order.Permutation(10**9, "7/2")[i] for i in range(4)], GOLDEN_BILLION)

    def test_seeds_differ(self):
        seen = {tuple(_order.Permutation(50, seed)[i] for i in range(50)) for seed in range(100)}
        self.assertEqual(len(seen), 100)

    def test_mixes(self):
        """A place's mean over many seeds is that of a random order, near enough."""
        n, seeds = 64, 800
        for place in (0, 31, 63):
            mean = sum(_order.Permutation(n, seed)[place] for seed in range(seeds)) / seeds
            self.assertLess(abs(mean - 31.5), 4.5 * 18.5 / seeds ** 0.5)

    def test_limits(self):
        self.assertRaises(ValueError, _order.Permutation, _order.LIMIT + 1, 0)
        self.assertRaises(TypeError, _order.Permutation, 5, 1.5)
        self.assertRaises(IndexError, lambda: _order.Permutation(5, 0)[5])


GOLDEN_10 = [8, 3, 5, 4, 9, 6, 2, 1, 7, 0]
GOLDEN_BILLION = [38842455, 900962400, 288064329, 147711031]


class Shares(unittest.TestCase):
    def test_cover_everything_once_with_any_regrouping(self):
        rng = random.Random(5)
        for _ in range(300):
            count, world = rng.randrange(1, 60), rng.randrange(1, 9)
            parts = [data.Share(count, r, world) for r in range(world)]
            seen = []
            taken = rng.randrange(0, min(len(p) for p in parts) + 1)
            for p in parts:
                seen += [p.position(k) for k in range(taken)]
            other = rng.randrange(1, 9)
            for r in range(other):
                p = parts[0].after(taken, r, other)
                seen += [p.position(k) for k in range(len(p))]
            self.assertEqual(sorted(seen), list(range(count)))

    def test_drop_and_pad_make_ranks_equal(self):
        for count in range(1, 30):
            for world in range(1, 8):
                drop = [data.Share(count, r, world, "drop") for r in range(world)]
                pad = [data.Share(count, r, world, "pad") for r in range(world)]
                self.assertEqual({len(p) for p in drop}, {count // world})
                self.assertEqual({len(p) for p in pad}, {-(-count // world)})
                self.assertEqual({p.position(k) for p in pad for k in range(len(p))}, set(range(count)))
                some = [p.position(k) for p in drop for k in range(len(p))]
                self.assertEqual(len(set(some)), len(some))


class Case(unittest.TestCase):
    def setUp(self):
        self.hdfs = fakes.FakeHDFS()
        self.addCleanup(self.hdfs.close)
        self.fs = _webhdfs.WebHDFS([self.hdfs.url], "ann", timeout=20)

    def put(self, path, content):
        self.hdfs.files[path] = content
        self.hdfs._parents(path)

    def fill(self, n=300, directory="/d"):
        for i in range(n):
            self.put("%s/%d/f%04d.bin" % (directory, i % 3, i), b"%d " % i * (i % 50))
        return data.Dataset(directory, fs=self.fs)


class Files(Case):
    def test_every_file_once_over_ranks_in_the_order_of_the_seed(self):
        d = self.fill()
        whole = list(d.epoch(seed=3))
        self.assertEqual({k: v for k, v in whole}, self.hdfs.files)
        self.assertEqual(whole, list(d.epoch(seed=3, threads=1)))
        self.assertNotEqual(whole, list(d.epoch(seed=4)))
        for world in (2, 7):
            parts = [list(d.epoch(seed=3, rank=r, world=world)) for r in range(world)]
            self.assertEqual(sorted(sum(parts, [])), sorted(whole))
            self.assertEqual([parts[i % world][i // world] for i in range(len(whole))], whole)
        self.assertEqual([n for n, _ in d.epoch(shuffle=False)], d.names())

    def test_goes_on_where_it_was(self):
        d = self.fill()
        whole = list(d.epoch(seed=1, rank=1, world=2))
        for batch in (None, 7):
            for stop in (0, 1, 5, 15):
                with d.epoch(seed=1, rank=1, world=2, batch=batch) as e:
                    first = [next(e) for _ in range(stop)]
                    state = json.loads(json.dumps(e.state()))
                rest = d.epoch(seed=1, rank=1, world=2, batch=batch).restore(state)
                found = first + list(rest)
                self.assertEqual(sum(found, []) if batch else found, whole)

    def test_goes_on_with_other_ranks(self):
        d = self.fill(100)
        seen, states = [], []
        for r in range(3):
            with d.epoch(seed=1, rank=r, world=3) as e:
                seen += [next(e) for _ in range(11)]
                states.append(e.state())
        for r in range(2):
            seen += list(d.epoch(seed=1, rank=r, world=2).restore(states[0]))
        self.assertEqual(sorted(seen), sorted(self.hdfs.files.items()))

    def test_a_state_of_something_else_is_refused(self):
        d = self.fill(20)
        state = d.epoch(seed=1, rank=0, world=2).state()
        for other in (dict(state, seed=2), dict(state, source=1), dict(state, rank=1), dict(state, share="pad")):
            self.assertRaises(ValueError, d.epoch(seed=1, rank=0, world=2).restore, other)

    def test_batches_decode_and_lengths(self):
        d = self.fill(25)
        e = d.epoch(batch=10, decode=lambda name, content: len(content))
        self.assertEqual(len(e), 3)
        sizes = list(e)
        self.assertEqual([len(b) for b in sizes], [10, 10, 5])
        self.assertEqual(sorted(sum(sizes, [])), sorted(len(c) for c in self.hdfs.files.values()))
        self.assertEqual(len(list(d.epoch(batch=10, drop_last=True))), 2)

        def broken(name, content):
            raise KeyError("in decode")
        self.assertRaises(KeyError, next, d.epoch(decode=broken))

    def test_faults_are_mended_elsewhere(self):
        d = self.fill()
        for faults in (["cut"], ["cut", "cut"], ["damage"], ["refuse"], ["piece"], ["piece", "damage", "refuse"], ["refuse", "refuse"], ["refuse"] * 4):
            self.hdfs.faults = list(faults)
            self.assertEqual(dict(d.epoch(threads=1)), self.hdfs.files, faults)
            self.assertEqual(self.hdfs.faults, [])

    def test_what_cannot_be_read_is_told_of_that_file(self):
        d = self.fill(30)
        names = d.names()
        del self.hdfs.files[names[3]]
        self.hdfs.secret.add(names[4])
        self.hdfs.open.add(names[5])
        self.assertRaises(FileNotFoundError, lambda: list(d.epoch(shuffle=False)))
        self.assertRaises(PermissionError, d.read, 4)
        e = d.epoch(shuffle=False, errors="skip")
        good = list(e)
        self.assertEqual([n for n, _ in good], names[:3] + names[6:])
        self.assertEqual([n for n, _ in e.skipped], names[3:6])
        self.assertIn("is being written", e.skipped[2][1])
        with d.epoch(shuffle=False, errors="skip") as e:
            first = [next(e) for _ in range(4)]
            state = e.state()
        self.assertEqual(first + list(d.epoch(shuffle=False, errors="skip").restore(state)), good)

    def test_large_files_and_small_answers(self):
        self.put("/d/large", os.urandom(3 << 20))
        self.put("/d/empty", b"")
        for i in range(40):
            self.put("/d/f%d" % i, b"x" * 1000)
        names = [n.encode() for n in sorted(self.hdfs.files)]
        found = _many.read_many(self.fs, names, maxbytes=5000)
        self.assertEqual(found, [self.hdfs.files[n.decode()] for n in names])
        self.assertGreater(len(self.hdfs.asked), 7)
        self.assertEqual(_many.read_many(self.fs, [b"f1", b"/d/f2"], root="/d"), [b"x" * 1000] * 2)

    def test_servers_without_the_operation(self):
        d = self.fill(20)
        self.hdfs.old = True
        self.assertEqual(dict(d.epoch()), self.hdfs.files)

    def test_names_and_patterns(self):
        for p in ("/a/x1.jpg", "/a/x2.png", "/a/b/x3.jpg", "/a/b/c/x4.jpg", "/a/_tmp/x5.jpg", "/a/.x6.jpg", "/z[1]/y.jpg"):
            self.put(p, b"1")
        self.hdfs.page = 2

        def names(*args, **kw):
            return data.Dataset(*args, fs=self.fs, **kw).names()
        self.assertEqual(names("/a", suffixes=".jpg"), ["/a/x1.jpg", "/a/b/x3.jpg", "/a/b/c/x4.jpg"])
        self.assertEqual(names("/a", recursive=False), ["/a/x1.jpg", "/a/x2.png"])
        self.assertEqual(names("hdfs://nn:8020/a/*.jpg"), ["/a/x1.jpg"])
        self.assertEqual(names("/a/*/*.jpg"), ["/a/b/x3.jpg"])
        self.assertEqual(names("/a/**/x[34].jpg"), ["/a/b/x3.jpg", "/a/b/c/x4.jpg"])
        self.assertEqual(names("/a/**/x[!34].jp?"), ["/a/x1.jpg"])
        self.assertEqual(names("/z[[]1]/*"), ["/z[1]/y.jpg"])
        self.assertEqual(names(["/a/x2.png", "/a/b"]), ["/a/x2.png", "/a/b/x3.jpg", "/a/b/c/x4.jpg"])
        self.assertRaises(FileNotFoundError, names, "/nothing")
        self.assertRaisesRegex(FileNotFoundError, "ends in .gif", names, "/a", suffixes=".gif")

    def test_the_list_is_kept_if_asked_for(self):
        d = self.fill(20)
        self.assertNotIn("/d/.hops-index", self.hdfs.files)
        kept = data.Dataset("/d", index=True, fs=self.fs)
        self.put("/d/0/new.bin", b"")
        again = data.Dataset("/d", index=True, fs=self.fs)
        self.assertEqual((again.names(), again.fingerprint(), again.bytes), (d.names(), d.fingerprint(), kept.bytes))
        self.assertEqual(len(data.Dataset("/d", index=True, suffixes=".bin", fs=self.fs)), 21)
        body = self.hdfs.files["/d/.hops-index"]
        self.hdfs.files["/d/.hops-index"] = body[:-1] + b"?"
        self.assertRaisesRegex(OSError, "damaged", data.Dataset, "/d", index=True, suffixes=".bin", fs=self.fs)

    def test_ranks_that_keep_the_list_at_once_have_it_whole(self):
        d, found = self.fill(20), []

        def create(path, body, overwrite=False, make=self.fs.create):  # what is being written can be read, as far as it is there
            make(path, body[:len(body) // 2], overwrite=overwrite)
            other = data.Dataset("/d", index=True, fs=_webhdfs.WebHDFS([self.hdfs.url], "ann", timeout=20))
            found.append(other.names())
            make(path, body, overwrite=True)

        self.fs.create = create
        found.append(data.Dataset("/d", index=True, fs=self.fs).names())
        self.fs.delete("/d/.hops-index")
        self.fs.rename = unittest.mock.Mock(side_effect=PermissionError("not here"))
        self.assertRaises(PermissionError, data.Dataset, "/d", index=True, fs=self.fs)
        self.assertEqual(found, [d.names()] * 3)
        self.assertEqual([p for p in self.hdfs.files if "/." in p], ["/d/.hops-index"])

    def test_travels_to_other_processes(self):
        d = pickle.loads(pickle.dumps(self.fill(10)))
        self.assertEqual(dict(d.epoch()), self.hdfs.files)

    def test_rank_of_the_environment(self):
        d = self.fill(10)
        for names in (("RANK", "WORLD_SIZE"), ("HOPS_RANK", "HOPS_WORLD_SIZE")):
            with unittest.mock.patch.dict(os.environ, dict(zip(names, ("1", "4")))):
                e = d.epoch()
                self.assertEqual((e.rank, e.world), (1, 4))
        for place in ((2, 2), (1, None), (-1, 2)):
            self.assertRaises(ValueError, d.epoch, 0, *place)
        self.assertRaises(ValueError, d.epoch, share="some")
        self.assertRaises(ValueError, d.epoch, errors="ignore")
        self.assertRaises(ValueError, d.epoch, batch=0)


class Wire(unittest.TestCase):
    """The messages as the servers' tests have them."""

    def setUp(self):
        with open(os.path.join(HERE, "..", "..", "..", "internal", "batchread", "testdata", "wire.json")) as f:
            self.vectors = json.load(f)

    def test_plan(self):
        head, groups = _many.parse_plan(bytes.fromhex(self.vectors["plan"]))
        self.assertEqual(head, self.vectors["plan_head"])
        self.assertEqual([list(files) for files, _ in groups], [[0, 3], [2]])
        self.assertEqual(groups[0][1].hex(), self.vectors["request"])

    def test_answer(self):
        body = bytes.fromhex(self.vectors["answer"])
        pieces, problems = _many.parse_answer(body)
        self.assertEqual(pieces, [b"first", None, b"third one"])
        self.assertEqual(problems, [[1, "ReplicaNotFoundException", "no replica"]])
        for i in range(len(body)):
            self.assertRaises((_many._Damaged, struct.error), _many.parse_answer, body[:i])
            self.assertRaises(_many._Damaged, _many.parse_answer, body[:i] + bytes([body[i] ^ 4]) + body[i + 1:])


def tar(samples):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as f:
        for key, parts in samples:
            for extension, content in parts.items():
                info = tarfile.TarInfo("%s.%s" % (key, extension))
                info.size = len(content)
                f.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tfrecord(records):
    out = b""
    for r in records:
        head = struct.pack("<Q", len(r))
        out += head + struct.pack("<I", _shards.masked_crc32c(head)) + r + struct.pack("<I", _shards.masked_crc32c(r))
    return out


class Shards(Case):
    def setUp(self):
        super().setUp()
        self.rows = ["%d,%d" % (s, i) for s in range(7) for i in range(s * 5)]
        for s in range(7):
            mine = [r.encode() for r in self.rows if r.startswith("%d," % s)]
            self.put("/lines/%d.txt" % s, b"\n".join(mine))
            self.put("/records/%d.tfrecord" % s, tfrecord(mine))
            self.put("/tars/%d.tar" % s, tar([("a/" + r.decode(), {"txt": r, "cls.json": b"%d" % s}) for r in mine]))

    SOURCES = ("/lines", "/records", "/tars")

    def text(self, sample):
        return (sample["txt"] if isinstance(sample, dict) else sample).decode()

    def test_every_sample_once_over_ranks(self):
        for path in self.SOURCES:
            s = data.shards(path, fs=self.fs)
            self.assertEqual(len(s), 7)
            whole = [self.text(x) for x in s.epoch(seed=1, buffer=20)]
            self.assertEqual(sorted(whole), sorted(self.rows), path)
            self.assertNotEqual(whole, [self.text(x) for x in s.epoch(seed=2, buffer=20)])
            parts = [self.text(x) for r in range(3) for x in s.epoch(seed=1, rank=r, world=3, buffer=20)]
            self.assertEqual(sorted(parts), sorted(self.rows))
        sample = next(data.shards("/tars", fs=self.fs).epoch())
        self.assertEqual(sorted(sample), ["__key__", "cls.json", "txt"])

    def test_goes_on_where_it_was(self):
        for path in self.SOURCES:
            s = data.shards(path, fs=self.fs)
            whole = [self.text(x) for x in s.epoch(seed=1, buffer=8, interleave=2)]
            for stop in range(0, len(whole) + 1, 9):
                with s.epoch(seed=1, buffer=8, interleave=2) as e:
                    first = [self.text(next(e)) for _ in range(stop)]
                    state = json.loads(json.dumps(e.state()))
                rest = s.epoch(seed=1, buffer=8, interleave=2).restore(state)
                self.assertEqual(first + [self.text(x) for x in rest], whole, (path, stop))

    def test_damaged_shards_say_where(self):
        self.put("/bad/a.tfrecord", tfrecord([b"one"]) + b"nonsense that is no record")
        self.assertRaisesRegex(OSError, "/bad/a.tfrecord: no TFRecord begins at 19", lambda: list(data.shards("/bad", fs=self.fs).epoch()))
        self.put("/worse/a.tar", b"no tar at all" * 100)
        self.assertRaisesRegex(OSError, "/worse/a.tar", lambda: list(data.shards("/worse", fs=self.fs).epoch()))
        self.assertRaisesRegex(ValueError, "give format=", data.shards, "/d", fs=self.fs_of("/d/x.bin"))
        self.assertRaisesRegex(ValueError, "it is one of", data.shards, "/lines", format="zip", fs=self.fs)

    def fs_of(self, path):
        self.put(path, b"x")
        return self.fs

    def test_a_shard_that_takes_many_reads(self):
        self.put("/long/a.txt", b"\n".join(b"%d" % i * 20 for i in range(3000)))
        with unittest.mock.patch.object(_shards, "PIECE", 1000):
            found = list(data.shards("/long", fs=self.fs).epoch(shuffle=False))
        self.assertEqual(found, [b"%d" % i * 20 for i in range(3000)])


class Adapters(Case):
    """The adapters' own part, with as much of torch as they use; integration/train has the real one."""

    def test_workers_split_the_part_of_the_rank(self):
        d = self.fill(50)
        utils, here = types.ModuleType("torch.utils.data"), [None]
        utils.IterableDataset = type("IterableDataset", (), {})
        utils.get_worker_info = lambda: here[0]
        modules = {"torch": types.ModuleType("torch"), "torch.utils": types.ModuleType("torch.utils"), "torch.utils.data": utils}
        with unittest.mock.patch.dict(sys.modules, modules), unittest.mock.patch.object(data, "_torch_class", None):
            seen = []
            for rank in range(2):
                t = d.torch_dataset(seed=1, rank=rank, world=2, decode=lambda name, content: name)
                self.assertIsInstance(t, utils.IterableDataset)
                for i in range(3):
                    here[0] = types.SimpleNamespace(id=i, num_workers=3)
                    seen += list(t)
            self.assertEqual(sorted(seen), sorted(d.names()))
            here[0] = None
            t = d.torch_dataset(seed=1, rank=0, world=1)
            first = list(t)
            t.set_epoch(1)
            self.assertNotEqual(first, list(t))
            self.assertEqual(sorted(first), sorted(t))
            again = pickle.loads(pickle.dumps(t))
            it = iter(again)
            begun = [next(it) for _ in range(9)]
            state = json.loads(json.dumps(again.state_dict()))
            other = d.torch_dataset(seed=1, rank=0, world=1)
            other.load_state_dict(state)
            self.assertEqual(begun + list(other), list(t))

    def test_what_is_missing_is_named(self):
        d = self.fill(3)
        with unittest.mock.patch.dict(sys.modules, {"torch": None, "tensorflow": None, "pyarrow": None}):
            self.assertRaisesRegex(ImportError, "package torch", d.torch_dataset)
            self.assertRaisesRegex(ImportError, "package tensorflow", d.tf_dataset)
            self.assertRaisesRegex(ImportError, "package pyarrow", data.parquet, "/d", fs=self.fs)


@unittest.skipUnless(importlib.util.find_spec("pyarrow"), "pyarrow is not installed")
class Parquet(Case):
    def setUp(self):
        super().setUp()
        import pyarrow
        import pyarrow.parquet
        for f in range(3):
            table = pyarrow.table({"id": [100 * f + i for i in range(40)], "text": ["x" * (i % 7) for i in range(40)], "unused": [0.5] * 40})
            out = io.BytesIO()
            pyarrow.parquet.write_table(table, out, row_group_size=15)
            self.put("/p/%d.parquet" % f, out.getvalue())
        self.ids = [100 * f + i for f in range(3) for i in range(40)]

    def read(self, epoch):
        return [i for batch in epoch for i in batch.column("id").to_pylist()]

    def test_every_row_once_over_ranks(self):
        p = data.parquet("/p", columns=["id", "text"], fs=self.fs)
        self.assertEqual((len(p), p.rows), (9, 120))
        for options in ({}, {"batch_size": 4}, {"batch_size": 4, "shuffle_rows": True}, {"shuffle_row_groups": False}):
            whole = self.read(p.epoch(seed=1, **options))
            self.assertEqual(sorted(whole), self.ids)
            parts = [i for r in range(4) for i in self.read(p.epoch(seed=1, rank=r, world=4, **options))]
            self.assertEqual(sorted(parts), self.ids)
        self.assertEqual(whole, self.ids)
        batch = next(p.epoch(batch_size=4))
        self.assertEqual((batch.num_rows, batch.schema.names), (4, ["id", "text"]))
        self.assertEqual(pickle.loads(pickle.dumps(p)).rows, 120)
        self.assertRaisesRegex(ValueError, "has no column nothing", data.parquet, "/p", columns=["nothing"], fs=self.fs)
        self.put("/q/a.parquet", b"no Parquet" * 10)
        self.assertRaisesRegex(OSError, "/q/a.parquet is no Parquet file", data.parquet, "/q", fs=self.fs)

    def test_goes_on_where_it_was(self):
        p = data.parquet("/p", fs=self.fs)
        options = {"seed": 2, "batch_size": 4, "shuffle_rows": True}
        whole = self.read(p.epoch(**options))
        for stop in range(0, 31, 3):
            with p.epoch(**options) as e:
                first = [i for _ in range(stop) for i in next(e).column("id").to_pylist()]
                state = json.loads(json.dumps(e.state()))
            self.assertEqual(first + self.read(p.epoch(**options).restore(state)), whole)


if __name__ == "__main__":
    unittest.main()
