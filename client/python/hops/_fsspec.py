"""The cluster's filesystem for fsspec, under hops:///path: with the cluster's identities and with failover between namenodes,
which fsspec's own webhdfs:// does not have (nor can torch.distributed.checkpoint rename through it). register() makes it known."""
import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from hops import _webhdfs

# A file is written in pieces of so many bytes: each is sent again when a datanode is lost on the way.
PIECE = 32 << 20


class HopsFileSystem(AbstractFileSystem):
    """The acting user's files."""

    protocol = "hops"
    root_marker = "/"
    cachable = False  # whoever was forked has connections of its own

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hdfs = _webhdfs.WebHDFS()

    def _entry(self, path, status):
        return {"name": path, "size": status["length"], "type": "directory" if status["type"] == "DIRECTORY" else "file"}

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self._entry(path, self.hdfs.status(path))

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        found = [self._entry(_webhdfs.join(path, s["pathSuffix"]) if s["pathSuffix"] else path, s) for s in self.hdfs.list(path)]
        return found if detail else [f["name"] for f in found]

    def makedirs(self, path, exist_ok=False):
        path = self._strip_protocol(path)
        if not exist_ok and self.hdfs.exists(path):
            raise FileExistsError(path)
        self.hdfs.mkdirs(path)

    def mkdir(self, path, create_parents=True, **kwargs):
        self.makedirs(path)

    def _rm(self, path):
        self.hdfs.delete(self._strip_protocol(path))

    def rm(self, path, recursive=False, maxdepth=None):
        for p in [path] if isinstance(path, str) else path:
            if not self.hdfs.delete(self._strip_protocol(p), recursive=recursive):
                raise FileNotFoundError(p)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        source, destination = self._strip_protocol(path1), self._strip_protocol(path2)
        if not self.hdfs.exists(source):
            raise FileNotFoundError(source)
        if not self.hdfs.rename(source, destination):
            self.hdfs.rename(source, destination, options="OVERWRITE")  # a file that is in the way, as in a local directory

    def cp_file(self, path1, path2, **kwargs):
        self.hdfs.create(self._strip_protocol(path2), self.hdfs.read(self._strip_protocol(path1)), overwrite=True)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        return _File(self, path, mode, block_size if mode == "rb" and block_size else PIECE, autocommit=autocommit, cache_options=cache_options)


class _File(AbstractBufferedFile):
    def _initiate_upload(self):
        self.begun = "a" in self.mode and self.fs.hdfs.exists(self.path)

    def _upload_chunk(self, final=False):
        data = self.buffer.getvalue()
        if not self.begun:
            self.fs.hdfs.create(self.path, data, overwrite=True)
            self.begun = True
        elif data:
            self.fs.hdfs.append(self.path, data)
        return True

    def _fetch_range(self, start, end):
        return self.fs.hdfs.read(self.path, start, max(0, end - start))


def register():
    """From now on fsspec knows hops://."""
    fsspec.register_implementation("hops", HopsFileSystem, clobber=True)
