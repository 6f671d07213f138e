"""Files of the cluster, under the names of hops.hdfs. Relative paths lie in the project's directory, /Projects/<project>."""
import fnmatch
import os
import posixpath
import shutil

from hops import _cluster, _webhdfs

_fs = {}


def get_fs():
    """The filesystem client of the acting user."""
    key = (tuple(_cluster.webhdfs()), _cluster.user())
    return _fs.get(key) or _fs.setdefault(key, _webhdfs.WebHDFS(*key))


get = get_fs


def project_user():
    return _cluster.user()


def project_name(project=None):
    return project or os.environ.get("HOPS_PROJECT") or _cluster.user()


def project_path(project=None):
    return "/Projects/%s/" % project_name(project)


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
    if not get_fs().rename(abs_path(src), abs_path(dst)):
        raise FileExistsError("cannot rename %s to %s: the source is missing, or the destination is there" % (src, dst))


move = rename


def chmod(hdfs_path, mode):
    get_fs().set_permission(abs_path(hdfs_path), "%o" % mode if isinstance(mode, int) else mode)


def chown(hdfs_path, user, group):
    get_fs().set_owner(abs_path(hdfs_path), user, group)


def load(hdfs_path):
    """The content of a file, as bytes."""
    return get_fs().read(abs_path(hdfs_path))


def dump(data, hdfs_path):
    """Write a file, replacing one that is there. Text is written as UTF-8."""
    get_fs().create(abs_path(hdfs_path), data.encode("utf-8") if isinstance(data, str) else data, overwrite=True)


def cp(src_hdfs_path, dest_hdfs_path, overwrite=False):
    """Copy a file."""
    get_fs().create(abs_path(dest_hdfs_path), load(src_hdfs_path), overwrite=overwrite)


def copy_to_hdfs(local_path, relative_hdfs_path, overwrite=False, project=None):
    """Copy a local file, or a directory with all below it, into a directory of the cluster."""
    target = posixpath.join(abs_path(relative_hdfs_path, project), os.path.basename(os.path.abspath(local_path)))
    if os.path.isdir(local_path):
        get_fs().mkdirs(target)
        for name in sorted(os.listdir(local_path)):
            copy_to_hdfs(os.path.join(local_path, name), target, overwrite)
        return target
    with open(local_path, "rb") as f:
        get_fs().create(target, f.read(), overwrite=overwrite)
    return target


def copy_to_local(hdfs_path, local_path="", overwrite=False, project=None):
    """Copy a file or directory of the cluster into a local directory (default: the current one); returns its local path."""
    source = abs_path(hdfs_path, project)
    target = os.path.join(local_path or os.getcwd(), posixpath.basename(source))
    if os.path.exists(target):
        if not overwrite:
            raise FileExistsError("%s exists: pass overwrite=True" % target)
        shutil.rmtree(target) if os.path.isdir(target) else os.remove(target)
    if isdir(source):
        os.makedirs(target)
        for path in ls(source):
            copy_to_local(path, target, overwrite)
        return target
    length = get_fs().status(source)["length"]
    with open(target, "wb") as f:
        for offset in range(0, length, 8 << 20):
            f.write(get_fs().read(source, offset, 8 << 20))
    return target


class _File:
    """A file of the cluster opened by open_file: read it, or write it and have it made at close."""

    def __init__(self, path, flags):
        self._path, self._write, self._at, self._data = path, "w" in flags and "r" not in flags, 0, []
        self._length = 0 if self._write else get_fs().status(path)["length"]

    def read(self, size=-1):
        if self._write:
            raise ValueError("opened for writing")
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

    def write(self, data):
        if not self._write:
            raise ValueError("opened for reading")
        self._data.append(data.encode("utf-8") if isinstance(data, str) else bytes(data))
        return len(data)

    def close(self):
        if self._write and self._data is not None:
            get_fs().create(self._path, b"".join(self._data), overwrite=True)
        self._data = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close() if not error[0] else None


def open_file(hdfs_path, project=None, flags="r", buff_size=0):
    """A file to read (flags "r", also "rw") or to write as a whole ("w"). buff_size changes nothing."""
    return _File(abs_path(hdfs_path, project), flags)
