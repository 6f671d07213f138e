"""Cases of hdfs-native, the client in Rust, by its Python package. Arguments: the URI of the filesystem, a directory that holds the files kept-N of N bytes,
each of which the namenodes keep where N says so, and a directory with an erasure coding policy.

Prints `ok NAME` or `fail NAME: WHY`, one a line. Leaves written-N and kept-N with 700 bytes more for other clients to read.
"""
import sys

import hdfs_native


def content(n):
    return bytes((i * 7 + (i >> 8)) & 255 for i in range(n))


def same(got, want):
    if got != want:
        raise AssertionError("%s, want %s" % ((len(got), len(want)) if isinstance(want, bytes) else (got, want)))


class Cases:
    def __init__(self, uri, root, coded):
        self.client, self.root, self.coded = hdfs_native.Client(uri), root, coded

    def run(self, name, case, *args):
        try:
            case(*args)
        except Exception as e:  # also those of assertions
            print("fail %s: %s %s" % (name, type(e).__name__, " ".join(str(e).split())))
        else:
            print("ok " + name)

    def read(self, path):
        return self.client.read(path).read(-1)

    def write(self, path, data, **options):
        w = self.client.create(path, hdfs_native.WriteOptions(overwrite=True, **options))
        for at in range(0, len(data), 300_001):
            w.write(data[at : at + 300_001])
        w.close()

    def whole(self, path, n):
        same(self.read(path), content(n))
        same(self.client.get_file_info(path).length, n)

    def part(self, path, n):
        r, at = self.client.read(path), n // 2
        same(r.read_range(at, n - at), content(n)[at:])
        r.seek(at)
        same(r.read(10), content(n)[at : at + 10])

    def appended(self, path, n):
        w = self.client.append(path)
        w.write(content(700))
        w.close()
        same(self.read(path), content(n) + content(700))

    def written(self, path, n):
        self.write(path, content(n))
        self.whole(path, n)

    def listed(self):
        paths = sorted(f.path.rsplit("/", 1)[1] for f in self.client.list_status(self.root + "/l"))
        same(paths, ["%03d" % i for i in range(30)])
        same(len(list(self.client.list_status(self.root + "/l", recursive=True))), 30)
        same(len(list(self.client.glob_status(self.root + "/l/01*"))), 10)
        same(self.client.get_content_summary(self.root + "/l").length, 300)

    def attributes(self, path):
        c = self.client
        c.set_permission(path, 0o640)
        c.set_owner(path, "alice", "users")
        c.set_times(path, 1_000_000_000_000, 1_100_000_000_000)
        same(c.set_replication(path, 2), True)
        f = c.get_file_info(path)
        same(
            (f.permission, f.owner, f.group, f.modification_time, f.access_time, f.replication),
            (0o640, "alice", "users", 1_000_000_000_000, 1_100_000_000_000, 2),
        )

    def acl(self, path):
        entry = hdfs_native.AclEntry("user", "access", "rwx", "bob")
        self.client.modify_acl_entries(path, [entry])
        got = self.client.get_acl_status(path).entries
        if not any(e.name == "bob" and str(e.permissions) == "rwx" for e in got):
            raise AssertionError(got)
        self.client.remove_acl(path)
        same(self.client.get_acl_status(path).entries, [])

    def renamed(self):
        self.write(self.root + "/r1", b"one")
        self.write(self.root + "/r2", b"two")
        try:
            self.client.rename(self.root + "/r1", self.root + "/r2")
        except Exception:
            pass
        else:
            raise AssertionError("a file was replaced unasked")
        self.client.rename(self.root + "/r1", self.root + "/r2", True)
        same(self.read(self.root + "/r2"), b"one")

    def removed(self):
        self.write(self.root + "/gone", b"x")
        same(self.client.delete(self.root + "/gone"), True)
        same(self.client.delete(self.root + "/gone"), False)
        self.missing()

    def missing(self):
        try:
            self.client.read(self.root + "/gone")
        except FileNotFoundError:
            return
        raise AssertionError("no FileNotFoundError")

    def all(self, sizes):
        for n in sizes:
            kept = "%s/kept-%d" % (self.root, n)
            self.run("read %d bytes" % n, self.whole, kept, n)
            self.run("read a part of %d bytes" % n, self.part, kept, n)
            self.run("append to %d bytes" % n, self.appended, kept, n)
            self.run("write %d bytes" % n, self.written, "%s/written-%d" % (self.root, n), n)
        for n in (1, 700_000, 5_000_000):
            self.run("write %d bytes, coded" % n, self.written, "%s/written-%d" % (self.coded, n), n)
        self.client.mkdirs(self.root + "/l", 0o755, True)
        for i in range(30):
            self.write(self.root + "/l/%03d" % i, b"0123456789")
        self.run("list", self.listed)
        self.run("attributes", self.attributes, self.root + "/l/000")
        self.run("ACL", self.acl, self.root + "/l/001")
        self.run("rename", self.renamed)
        self.run("delete", self.removed)
        self.run("recover a lease", lambda: same(self.client.recover_lease(self.root + "/l/002"), True))


if __name__ == "__main__":
    Cases(*sys.argv[1:4]).all([int(n) for n in sys.argv[4:]])
