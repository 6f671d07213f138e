"""Files of the cluster, under the names of hops.hdfs. Relative paths lie in the project's directory, /Projects/<project>."""
import base64
import fnmatch
import os
import posixpath
import shutil
import sys

from hops import _cluster, _webhdfs

_fs = {}

# How much of a file is held in memory at once, in bytes.
PIECE = 32 << 20


def get_fs():
    """The filesystem client of the acting user."""
    key = (tuple(_cluster.webhdfs()), _cluster.user())
    return _fs.get(key) or _fs.setdefault(key, _webhdfs.WebHDFS(*key))


get = get_fs


def project_user():
    return _cluster.user()


def project_name(project=None):
    """The project: one that is named, HOPS_PROJECT, in a trial that of its experiment, else the user's name."""
    if project or os.environ.get("HOPS_PROJECT"):
        return project or os.environ["HOPS_PROJECT"]
    parts = os.environ.get("HOPS_EXPERIMENT_DIR", "").split("/")
    return parts[2] if len(parts) > 3 and parts[1] == "Projects" else _cluster.user()


def project_path(project=None, exclude_nn_addr=False):
    """The project's directory, with a slash at its end. exclude_nn_addr changes nothing: no address is ever part of it."""
    return "/Projects/%s/" % project_name(project)


def project_id(project=None):
    """A number that no other project has: the file id of its directory. FileNotFoundError: the project has none yet."""
    return get_fs().status("/Projects/" + project_name(project))["fileId"]


def get_webhdfs_host():
    """The host of the namenode's HTTP (the first one's, of several)."""
    return _cluster.split(_cluster.webhdfs()[0])[0]


def get_webhdfs_port():
    """Its port."""
    return _cluster.split(_cluster.webhdfs()[0])[1]


def is_tls_enabled():
    """Whether the namenode is spoken to by TLS wherever it is."""
    return _cluster.secure(_cluster.webhdfs()[0])


def capacity():
    """Bytes that the filesystem can hold in all."""
    return get_fs()._simple("GET", "/", "GETSTATUS")["FsStatus"]["capacity"]


def log(string):
    """Print a line; of a trial it is in the trial's log."""
    print(string, flush=True)


def close():
    """Nothing is kept open that needs it; programs of release 1.0 call it."""


def add_module(hdfs_path, project=None):
    """Copy a Python file, notebook or directory of the cluster here and make it importable. Returns its local path."""
    import tempfile
    local = copy_to_local(hdfs_path, tempfile.mkdtemp(prefix="hops-module-"), True, project)
    if local.endswith(".ipynb"):
        from hops import allreduce
        with open(local[:-len(".ipynb")] + ".py", "w", encoding="utf-8") as f:
            f.write(allreduce.program(local))
        local = f.name
    directory = local if os.path.isdir(local) and not os.path.exists(os.path.join(local, "__init__.py")) else os.path.dirname(local)
    if directory not in sys.path:
        sys.path.append(directory)
    return local


def get_plain_path(path):
    """A path without scheme and host: hdfs://nn:8020/a -> /a."""
    if "://" in path:
        rest = path.split("://", 1)[1]
        return "/" + rest.split("/", 1)[1] if "/" in rest else "/"
    return path


def abs_path(hdfs_path, project=None):
    """The absolute path of a path that may be relative to the project or carry a scheme."""
    path = get_plain_path(hdfs_path)
    if not path.startswith("/"):
        path = project_path(project) + path
    return posixpath.normpath(path)


def exists(hdfs_path, project=None):
    return get_fs().exists(abs_path(hdfs_path, project))


def isdir(hdfs_path, project=None):
    try:
        return get_fs().status(abs_path(hdfs_path, project))["type"] == "DIRECTORY"
    except FileNotFoundError:
        return False


def isfile(hdfs_path, project=None):
    try:
        return get_fs().status(abs_path(hdfs_path, project))["type"] == "FILE"
    except FileNotFoundError:
        return False


def stat(hdfs_path):
    return get_fs().status(abs_path(hdfs_path))


def ls(hdfs_path, recursive=False, exclude_nn_addr=False):
    """Absolute paths of a directory's entries; of the whole tree if recursive. exclude_nn_addr changes nothing: no address
    is ever part of them."""
    found = []
    root = abs_path(hdfs_path)
    for s in get_fs().list(root):
        path = posixpath.join(root, s["pathSuffix"]) if s["pathSuffix"] else root
        found.append(path)
        if recursive and s["type"] == "DIRECTORY":
            found.extend(ls(path, True))
    return found


def lsl(hdfs_path, recursive=False, project=None):
    """FileStatus of a directory's entries, each with its absolute path in "path"."""
    found = []
    root = abs_path(hdfs_path, project)
    for s in get_fs().list(root):
        s["path"] = posixpath.join(root, s["pathSuffix"]) if s["pathSuffix"] else root
        found.append(s)
        if recursive and s["type"] == "DIRECTORY":
            found.extend(lsl(s["path"], True))
    return found


def glob(hdfs_path, recursive=False, project=None):
    """Paths that match a pattern in the last component."""
    directory, pattern = posixpath.split(abs_path(hdfs_path, project))
    return [p for p in ls(directory, recursive) if fnmatch.fnmatch(posixpath.basename(p), pattern)]


def mkdir(hdfs_path, project=None):
    return get_fs().mkdirs(abs_path(hdfs_path, project))


def delete(hdfs_path, recursive=False):
    return get_fs().delete(abs_path(hdfs_path), recursive)


def rmr(hdfs_path, project=None):
    return get_fs().delete(abs_path(hdfs_path, project), True)


def rename(src, dst):
    """Atomic. FileExistsError: it cannot be done."""
    source = abs_path(src)
    # What is not there may be taken for one whose rename was done and not answered, when there is something at the destination.
    if not get_fs().exists(source) or not get_fs().rename(source, abs_path(dst)):
        raise FileExistsError("cannot rename %s to %s: the source is missing, or the destination is there" % (src, dst))


move = rename


class publish:
    """Several changes of files in one go, all of them or none; nobody ever sees a state in between:

        with hdfs.publish() as p:
            p.delete("data/old", recursive=True, if_there=True)
            p.rename("data/current", "data/old")
            p.rename("data/next", "data/current")
            p.set_xattr("data/current", "user.version", "7")
            p.snapshot("data", "v7")

    They are done in their order when the block ends, each after those before it, unless it ends with an exception. When a step cannot be done nothing is,
    and the OSError says which step it was. snapshot_path is that of the snapshot afterwards."""

    def __init__(self, project=None):
        self._project, self._steps, self.snapshot_path = project, [], None

    def rename(self, src, dst, overwrite=False):
        """To exactly dst, whose directory has to be there. overwrite: it may replace a file, or an empty directory."""
        self._add("rename", source=self._path(src), destination=self._path(dst), overwrite=bool(overwrite))

    def delete(self, hdfs_path, recursive=False, if_there=False):
        """if_there: otherwise it is an error when nothing is there."""
        self._add("delete", path=self._path(hdfs_path), recursive=bool(recursive), ifThere=bool(if_there))

    def set_xattr(self, hdfs_path, name, value, create=True, replace=True):
        """name has its prefix (user.version), value is text or bytes. create: it may be made; replace: one that is there may be replaced."""
        data = value.encode("utf-8") if isinstance(value, str) else bytes(value)
        flag = ",".join(f for f, on in (("CREATE", create), ("REPLACE", replace)) if on)
        if not flag:
            raise ValueError("an attribute that may neither be made nor replaced")
        self._add("setXAttr", path=self._path(hdfs_path), name=name, value="0s" + base64.b64encode(data).decode("ascii"), flag=flag)

    def remove_xattr(self, hdfs_path, name):
        """It has to be there."""
        self._add("removeXAttr", path=self._path(hdfs_path), name=name)

    def snapshot(self, hdfs_path, name=""):
        """Of a snapshottable directory; the namenode names it if nobody does. The last step only."""
        self._add("createSnapshot", path=self._path(hdfs_path), name=name)

    def _add(self, step, **what):
        self._steps.append({step: what})

    def _path(self, hdfs_path):
        return abs_path(hdfs_path, self._project)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if not error[0]:
            self.snapshot_path = get_fs().publish(self._steps)


def access(hdfs_path, mode, project=None):
    """Whether this user may: mode is os.R_OK, os.W_OK, os.X_OK, their sum, or text as "rw-"."""
    if isinstance(mode, int):
        mode = "".join(c if mode & bit else "-" for c, bit in (("r", os.R_OK), ("w", os.W_OK), ("x", os.X_OK)))
    try:
        get_fs()._simple("GET", abs_path(hdfs_path, project), "CHECKACCESS", fsaction=mode)
        return True
    except PermissionError:
        return False


def chmod(hdfs_path, mode, project=None):
    get_fs().set_permission(abs_path(hdfs_path, project), "%o" % mode if isinstance(mode, int) else mode)


def chown(hdfs_path, user, group, project=None):
    get_fs().set_owner(abs_path(hdfs_path, project), user, group)


def load(hdfs_path):
    """The content of a file, as bytes."""
    return get_fs().read(abs_path(hdfs_path))


def dump(data, hdfs_path):
    """Write a file, replacing one that is there. Text is written as UTF-8."""
    get_fs().create(abs_path(hdfs_path), data.encode("utf-8") if isinstance(data, str) else data, overwrite=True)


def cp(src_hdfs_path, dest_hdfs_path, overwrite=False):
    """Copy a file."""
    source, target = abs_path(src_hdfs_path), abs_path(dest_hdfs_path)
    if source == target:
        raise shutil.SameFileError("%s cannot be copied onto itself" % source)
    length = get_fs().status(source)["length"]
    with _Writer(target, overwrite) as out:
        for offset in range(0, length, PIECE):
            out.write(get_fs().read(source, offset, min(PIECE, length - offset)))


def copy_to_hdfs(local_path, relative_hdfs_path, overwrite=False, project=None):
    """Copy a local file, or a directory with all below it, into a directory of the cluster. Returns its path there."""
    target = posixpath.join(abs_path(relative_hdfs_path, project), os.path.basename(os.path.abspath(local_path)))
    put(local_path, target, overwrite)
    return target


def put(local_path, target, overwrite=False):
    """Copy a local file or directory to an absolute path of the cluster."""
    if os.path.isdir(local_path):
        get_fs().mkdirs(target)
        for name in sorted(os.listdir(local_path)):
            put(os.path.join(local_path, name), posixpath.join(target, name), overwrite)
        return
    with open(local_path, "rb") as f, _Writer(target, overwrite) as out:
        while True:
            data = f.read(PIECE)
            if not data:
                break
            out.write(data)


def copy_to_local(hdfs_path, local_path="", overwrite=False, project=None):
    """Copy a file or directory of the cluster into a local directory (default: the current one); returns its local path."""
    source = abs_path(hdfs_path, project)
    target = os.path.join(local_path or os.getcwd(), posixpath.basename(source))
    status = get_fs().status(source)  # before anything here is removed
    if os.path.exists(target):
        if not overwrite:
            raise FileExistsError("%s exists: pass overwrite=True" % target)
        shutil.rmtree(target) if os.path.isdir(target) and not os.path.islink(target) else os.remove(target)
    if status["type"] == "DIRECTORY":
        os.makedirs(target)
        for path in ls(source):
            copy_to_local(path, target, overwrite)
        return target
    length = status["length"]
    with open(target, "wb") as f:
        for offset in range(0, length, PIECE):
            f.write(get_fs().read(source, offset, min(PIECE, length - offset)))
    return target


class _Writer:
    """A file of the cluster that is written in pieces. It is there from the first piece on."""

    def __init__(self, path, overwrite):
        self._path, self._overwrite, self._made, self._held, self._data = path, overwrite, False, 0, []
        self.closed = False

    def write(self, data):
        if self.closed:
            raise ValueError("the file is closed")
        self._data.append(data.encode("utf-8") if isinstance(data, str) else bytes(data))
        self._held += len(self._data[-1])
        if self._held >= PIECE:
            self.flush()
        return len(data)

    def flush(self):
        data, self._data, self._held = b"".join(self._data), [], 0
        if not self._made:
            get_fs().create(self._path, data, overwrite=self._overwrite)
            self._made = True
        elif data:
            get_fs().append(self._path, data)

    def close(self):
        if not self.closed:
            self.flush()
            self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if not error[0]:
            self.close()


class _Reader:
    """A file of the cluster that is read."""

    def __init__(self, path):
        self._path, self._at, self._length, self.closed = path, 0, get_fs().status(path)["length"], False

    def read(self, size=-1):
        size = self._length - self._at if size is None or size < 0 else min(size, self._length - self._at)
        if size <= 0:
            return b""
        data = get_fs().read(self._path, self._at, size)
        self._at += len(data)
        return data

    def seek(self, offset, whence=0):
        self._at = offset + (0, self._at, self._length)[whence]
        return self._at

    def tell(self):
        return self._at

    def close(self):
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def open_file(hdfs_path, project=None, flags="rw", buff_size=0):
    """A file to read as bytes (flags "r"; also "rw" where it is there) or to write anew ("w", "wt"). buff_size changes nothing."""
    path = abs_path(hdfs_path, project)
    if "r" in flags and ("w" not in flags or exists(path)):
        return _Reader(path)
    if "w" not in flags:
        raise ValueError('flags are %r; there are "r", "w" and "rw"' % flags)
    return _Writer(path, True)
