import json
import time
import unittest

from hops import _environment


class Files:
    """A filesystem in a dict: bytes are files, None directories."""

    def __init__(self, **tree):
        self.tree = {k.replace("__", "/"): v for k, v in tree.items()}

    def status(self, path):
        if path not in self.tree:
            raise FileNotFoundError(path)
        data = self.tree[path]
        return {"length": len(data or b""), "modificationTime": 7, "fileId": 42, "type": "DIRECTORY" if data is None else "FILE"}

    def exists(self, path):
        return path in self.tree

    def list(self, path):
        return [dict(self.status(p), pathSuffix=p[len(path) + 1:]) for p in sorted(self.tree) if p.startswith(path + "/") and "/" not in p[len(path) + 1:]]

    def read(self, path):
        return self.tree[path]

    def create(self, path, data, overwrite=False):
        self.tree[path] = data

    def rename(self, source, destination):
        if destination in self.tree:
            return False
        self.tree[destination] = self.tree.pop(source)
        return True

    def delete(self, path):
        del self.tree[path]


class Environment(unittest.TestCase):
    def test_this_python_is_described(self):
        e = _environment.freeze()
        self.assertTrue(e["python"].split()[1].count(".") >= 1)
        self.assertEqual(e, json.loads(json.dumps(e)))
        for name in e["packages"]:
            self.assertEqual(name, name.lower())

    def test_data_that_the_arguments_name(self):
        fs = Files(**{"/d": None, "/d/a": b"12345", "/d/sub": None, "/d/sub/b": b"678", "/f": b"1"})
        spec = {
            "arguments": {"data": "/d", "more": ["hdfs://nn:8020/f", "/not/there"], "text": "no path", "url": "http://x/f", "root": "/"},
            "files": [{"name": "x", "uri": "/f"}],
        }
        found = _environment.data_versions(fs, spec)
        self.assertEqual([(v["key"], v["path"], v["length"]) for v in found], [("arguments.data", "/d", 8), ("arguments.more[0]", "/f", 1), ("files.x", "/f", 1)])
        self.assertEqual((found[0]["files"], found[0]["directory"], found[0]["file_id"]), (2, True, 42))

    def test_it_is_recorded_once_and_hurts_nobody(self):
        fs = Files(**{"/e/experiment.json": b'{"spec": {"arguments": {"data": "/f"}}}', "/f": b"1"})
        self.assertIsNone(_environment.record(fs, "/e"))
        first = dict(fs.tree)
        self.assertIsNone(_environment.record(fs, "/e"))
        self.assertEqual(fs.tree, first)
        self.assertEqual(sorted(fs.tree), ["/e/data.json", "/e/environment.json", "/e/experiment.json", "/f"])
        self.assertIn("KeyError", _environment.record(Files(), "/e"))

    def test_one_of_many_looks_at_the_data(self):
        class Beaten(Files):
            def rename(self, source, destination):
                self.tree[destination] = b"of another one"
                return super().rename(source, destination)

        class Begun(Files):
            def status(self, path):
                return dict(super().status(path), modificationTime=time.time() * 1000)

        for fs in (Beaten(), Begun(**{"/e/environment.json": b"of another one"})):
            self.assertIsNone(_environment.record(fs, "/e"))
            self.assertEqual(fs.tree, {"/e/environment.json": b"of another one"})

    def test_a_directory_without_end(self):
        fs = Files(**dict({"/d": None}, **{"/d/%d" % i: b"" for i in range(5)}))
        limit, _environment.MAX_FILES = _environment.MAX_FILES, 3
        try:
            self.assertIn("more than 3 files", _environment.data_versions(fs, {"arguments": {"d": "/d"}})[0]["problem"])
        finally:
            _environment.MAX_FILES = limit


if __name__ == "__main__":
    unittest.main()
