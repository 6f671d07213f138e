"""Cases of fsspec's WebHDFS file system. Arguments: host, port, user, then a command.

cases            runs all cases and prints `ok NAME` or `fail NAME: WHY`, one a line
write PATH       writes standard input
read PATH        writes the file to standard output
"""
import sys
import traceback

import fsspec


class Cases:
    def __init__(self, fs, root):
        self.fs, self.root = fs, root

    def path(self, name):
        return self.root + "/" + name

    def case_mkdir(self):
        self.fs.mkdir(self.path("d"))
        assert self.fs.isdir(self.path("d"))

    def case_makedirs_exist_ok(self):
        self.fs.makedirs(self.path("d/e/f"), exist_ok=True)
        self.fs.makedirs(self.path("d/e/f"), exist_ok=True)
        assert self.fs.isdir(self.path("d/e/f"))

    def case_pipe_and_cat(self):
        self.fs.pipe(self.path("f"), b"hello world\n")
        assert self.fs.cat(self.path("f")) == b"hello world\n"

    def case_info(self):
        self.fs.pipe(self.path("f"), b"hello world\n")
        info = self.fs.info(self.path("f"))
        assert info["size"] == 12 and info["type"] == "file", info
        assert self.fs.size(self.path("f")) == 12

    def case_info_missing(self):
        try:
            self.fs.info(self.path("missing"))
        except FileNotFoundError:
            return
        raise AssertionError("no FileNotFoundError")

    def case_exists(self):
        self.fs.pipe(self.path("f"), b"x")
        assert self.fs.exists(self.path("f")) and self.fs.isfile(self.path("f"))
        assert not self.fs.exists(self.path("missing"))

    def case_ls(self):
        for name in ["l/a", "l/b", "l/c/d"]:
            self.fs.pipe(self.path(name), name.encode())
        names = sorted(e["name"].rsplit("/", 1)[1] for e in self.fs.ls(self.path("l"), detail=True))
        assert names == ["a", "b", "c"], names
        types = {e["name"].rsplit("/", 1)[1]: e["type"] for e in self.fs.ls(self.path("l"), detail=True)}
        assert types["a"] == "file" and types["c"] == "directory", types

    def case_ls_many(self):
        for i in range(25):  # more than a page of a listing
            self.fs.touch(self.path("many/%02d" % i))
        assert len(self.fs.ls(self.path("many"))) == 25

    def case_walk_find_glob_du(self):
        for name in ["w/a.txt", "w/x/b.txt", "w/x/y/c.bin"]:
            self.fs.pipe(self.path(name), b"12345")
        found = sorted(p.split("/w/", 1)[1] for p in self.fs.find(self.path("w")))
        assert found == ["a.txt", "x/b.txt", "x/y/c.bin"], found
        matched = self.fs.glob(self.path("w/*.txt"))
        assert len(matched) == 1, matched
        assert self.fs.du(self.path("w")) == 15
        assert len(list(self.fs.walk(self.path("w")))) == 3

    def case_write_blocks_and_seek(self):
        data = bytes(range(256)) * 4096 * 6  # 6 MiB, more than one buffer
        with self.fs.open(self.path("big"), "wb", block_size=2**20) as f:
            for i in range(0, len(data), 700_001):
                f.write(data[i : i + 700_001])
        assert self.fs.size(self.path("big")) == len(data)
        with self.fs.open(self.path("big"), "rb") as f:
            f.seek(5_000_000)
            assert f.read(1000) == data[5_000_000:5_001_000]
            f.seek(0)
            assert f.read() == data

    def case_cat_ranges(self):
        self.fs.pipe(self.path("r"), b"0123456789")
        assert self.fs.cat_file(self.path("r"), start=3, end=7) == b"3456"

    def case_overwrite(self):
        self.fs.pipe(self.path("o"), b"first")
        self.fs.pipe(self.path("o"), b"2nd")
        assert self.fs.cat(self.path("o")) == b"2nd"

    def case_empty_file(self):
        self.fs.touch(self.path("empty"))
        assert self.fs.size(self.path("empty")) == 0
        assert self.fs.cat(self.path("empty")) == b""

    def case_mv(self):
        self.fs.pipe(self.path("m1"), b"m")
        self.fs.mv(self.path("m1"), self.path("m2"))
        assert not self.fs.exists(self.path("m1")) and self.fs.cat(self.path("m2")) == b"m"

    def case_cp_file(self):
        self.fs.pipe(self.path("c1"), b"c")
        self.fs.cp_file(self.path("c1"), self.path("c2"))
        assert self.fs.cat(self.path("c2")) == b"c"

    def case_rm(self):
        self.fs.pipe(self.path("gone/a"), b"x")
        self.fs.rm(self.path("gone"), recursive=True)
        assert not self.fs.exists(self.path("gone"))

    def case_rm_file(self):
        self.fs.pipe(self.path("gone2"), b"x")
        self.fs.rm_file(self.path("gone2"))
        assert not self.fs.exists(self.path("gone2"))

    def case_content_summary(self):
        self.fs.pipe(self.path("cs/a"), b"12345")
        summary = self.fs.content_summary(self.path("cs"))
        assert summary["fileCount"] == 1 and summary["directoryCount"] == 1 and summary["length"] == 5, summary

    def case_checksum(self):
        self.fs.pipe(self.path("sum"), b"12345")
        assert self.fs.ukey(self.path("sum"))["algorithm"] == "MD5-of-0MD5-of-512CRC32C"

    def case_home_directory(self):
        assert self.fs.home_directory().startswith("/user/")

    def case_chmod_chown(self):
        self.fs.pipe(self.path("mode"), b"x")
        self.fs.chmod(self.path("mode"), 600)
        self.fs.chown(self.path("mode"), owner="alice", group="staff")
        info = self.fs.info(self.path("mode"))
        assert (info["permission"], info["owner"], info["group"]) == ("600", "alice", "staff"), info

    def case_set_replication(self):
        self.fs.pipe(self.path("rep"), b"x")
        self.fs.set_replication(self.path("rep"), 2)
        assert self.fs.info(self.path("rep"))["replication"] == 2

    def case_put_and_get(self):
        import os
        import tempfile

        with tempfile.TemporaryDirectory() as d:
            local = os.path.join(d, "in")
            with open(local, "wb") as f:
                f.write(b"local\n" * 1000)
            self.fs.put_file(local, self.path("put"))
            self.fs.get_file(self.path("put"), os.path.join(d, "out"))
            with open(os.path.join(d, "out"), "rb") as f:
                assert f.read() == b"local\n" * 1000

    def case_transaction(self):
        with self.fs.transaction:
            with self.fs.open(self.path("t"), "wb") as f:
                f.write(b"late")
        assert self.fs.cat(self.path("t")) == b"late"

    def case_permission_denied(self):
        self.fs.pipe(self.path("secret"), b"x")
        self.fs.chmod(self.path("secret"), 600)
        other = fsspec.filesystem("webhdfs", host=self.fs.kwargs_host, port=self.fs.kwargs_port, user="alice", skip_instance_cache=True)
        try:
            other.cat(self.path("secret"))
        except PermissionError:
            return
        raise AssertionError("no PermissionError")


def main():
    host, port, user, command = sys.argv[1:5]
    fs = fsspec.filesystem("webhdfs", host=host, port=int(port), user=user, use_listings_cache=False)
    fs.kwargs_host, fs.kwargs_port = host, int(port)
    if command == "write":
        with fs.open(sys.argv[5], "wb") as f:
            f.write(sys.stdin.buffer.read())
        return
    if command == "read":
        sys.stdout.buffer.write(fs.cat(sys.argv[5]))
        return
    root = "/fsspec"
    if fs.exists(root):
        fs.rm(root, recursive=True)
    fs.mkdir(root)
    cases = Cases(fs, root)
    for name in sorted(n for n in dir(cases) if n.startswith("case_")):
        try:
            getattr(cases, name)()
            print("ok", name[5:])
        except Exception as e:
            where = traceback.extract_tb(e.__traceback__)
            at = [f for f in where if f.filename == __file__][-1]
            print("fail %s: line %d: %s: %s" % (name[5:], at.lineno, type(e).__name__, " ".join(str(e).split())))


main()
