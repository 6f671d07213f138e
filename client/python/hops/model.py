"""Models of a project: versions of a directory of files, with metrics (docs/reference/models.md).

    model.export("model_dir", "digits", metrics={"accuracy": 0.98})
    best = model.get_best_model("digits", "accuracy", model.Metric.MAX)
    model.download_model("digits", best["version"])
"""
import json
import os
import posixpath
import re
import secrets
import shutil
import time
import zlib

from hops import _cluster, _run, _wire, hdfs

FORMAT = 1
MAX_MODEL = 1 << 20  # bytes of model.json
DAY_MS = 24 * 3600 * 1000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")


class Metric:
    """Whether the best model has the largest or the smallest metric."""

    MAX = "MAX"
    MIN = "MIN"


class ModelNotFound(Exception):
    """There is no model of the name, version or metric."""


class ModelArchiveExists(Exception):
    """What is to be downloaded is here already."""


def export(model_path, model_name, model_version=None, overwrite=False, metrics=None, description=None, synchronous=True, synchronous_timeout=120, project=None):
    """Copy a file or directory, of this machine or of the cluster, to Models/<name>/<version>/ of the project. Without a version it is the next one. In a trial the model knows its
    experiment and trial. Returns model.json as a dict. FileExistsError: the version is there, and overwrite is not set. (It is there when this returns: synchronous and its
    timeout change nothing.)"""
    directory = _directory(model_name, project)
    if model_version is not None and (not isinstance(model_version, int) or isinstance(model_version, bool) or model_version < 1):
        raise ValueError("model_version is %r, not a whole number above 0" % (model_version,))
    if description is not None and len(description.encode("utf-8")) > 8 << 10:
        raise ValueError("the description of a model has at most 8 KiB")
    fs = hdfs.get_fs()
    about = {"format": FORMAT, "name": model_name, "version": 0, "created": int(time.time() * 1000), "user": _cluster.user(),
             **({"description": description} if description else {}), **({"metrics": _metrics(metrics)} if metrics else {}), **_lineage()}
    fs.mkdirs(directory)
    _sweep(fs, directory)
    fresh = "%s/.new-%s" % (directory, secrets.token_hex(8))
    try:
        about["source"], about["files"] = _copy(fs, model_path, fresh)
        version = model_version or _newest(fs, directory) + 1
        while True:
            about["version"] = version
            text = _wire.encode(about)
            if len(text) > MAX_MODEL or len(about["files"]) > _wire.MAX_ITEMS:
                raise ValueError("model.json would have %d bytes and %d files, and at most %d and %d are kept: fewer files, or an archive of them" % (
                    len(text), len(about["files"]), MAX_MODEL, _wire.MAX_ITEMS))
            fs.create(fresh + "/model.json", text, overwrite=True)
            target = "%s/%d" % (directory, version)
            if overwrite and model_version:
                fs.delete(target, recursive=True)
            try:
                fs.rename(fresh, target, options="NONE")
                return {**about, "path": target}
            except FileExistsError:
                if model_version:
                    raise FileExistsError("version %d of the model %s is there: pass overwrite=True, or no version" % (version, model_name)) from None
                version = max(version, _newest(fs, directory)) + 1
            except FileNotFoundError:
                # The answer to a rename that was done may have been lost.
                if _read(fs, target + "/model.json") == json.loads(text.decode("utf-8")):
                    return {**about, "path": target}
                raise
    except BaseException:
        try:
            fs.delete(fresh, recursive=True)
        except OSError:
            pass
        raise


def get_model(name, version, project_name=None):
    """model.json of a version, with its "path". ModelNotFound: there is none."""
    directory = _directory(name, project_name)
    found = _read(hdfs.get_fs(), "%s/%d/model.json" % (directory, int(version)))
    if found is None:
        raise ModelNotFound("there is no version %s of a model %s in project %s" % (version, name, hdfs.project_name(project_name)))
    return {**found, "name": name, "version": int(version), "path": "%s/%d" % (directory, int(version))}


def get_models(name, project_name=None):
    """All versions of a model, the oldest first; an empty list if there is none."""
    directory, fs, found = _directory(name, project_name), hdfs.get_fs(), []
    for version in _versions(fs, directory):
        about = _read(fs, "%s/%d/model.json" % (directory, version))
        if about is not None:
            found.append({**about, "name": name, "version": version, "path": "%s/%d" % (directory, version)})
    return found


def get_best_model(name, metric, direction, project_name=None):
    """The version with the best value of a metric; of equal ones the older. ModelNotFound: no version has it."""
    direction = str(direction).upper()
    if direction not in (Metric.MAX, Metric.MIN):
        raise ValueError("direction is %r: Metric.MAX or Metric.MIN" % (direction,))
    best = None
    for about in get_models(name, project_name):
        value = (about.get("metrics") or {}).get(metric)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if best is None or (value > best[0] if direction == Metric.MAX else value < best[0]):
                best = value, about
    if best is None:
        raise ModelNotFound("no version of the model %s in project %s has the metric %r" % (name, hdfs.project_name(project_name), metric))
    return best[1]


def download_model(name, version=None, project_name=None, overwrite=False):
    """Copy the files of a model, of its newest version if none is named, to a new directory <name>-<version> here; returns its path.
    ModelArchiveExists: it is there, and overwrite is not set."""
    if version is None:
        found = _versions(hdfs.get_fs(), _directory(name, project_name))
        if not found:
            raise ModelNotFound("there is no model %s in project %s" % (name, hdfs.project_name(project_name)))
        version = found[-1]
    about = get_model(name, version, project_name)
    target = os.path.abspath("%s-%d" % (name, about["version"]))
    if os.path.exists(target):
        if not overwrite:
            raise ModelArchiveExists("%s is here: pass overwrite=True" % target)
        shutil.rmtree(target)
    os.makedirs(target)
    for path in hdfs.ls(about["path"]):
        hdfs.copy_to_local(path, target)
    for f in about.get("files") or []:
        local = os.path.join(target, *f["name"].split("/"))
        if ".." in f["name"].split("/") or not os.path.isfile(local) or os.path.getsize(local) != f["size"] or _crc(local) != f["crc32"]:
            raise OSError("model %s, version %s: the file %s is not what was exported" % (name, version, f["name"]))
    return target


def _directory(name, project):
    if not isinstance(name, str) or not _NAME.match(name):
        raise ValueError("the name of a model is 1 to 100 letters, digits, _ . and -, not %r" % (name,))
    return "/Projects/%s/Models/%s" % (hdfs.project_name(project), name)


def _metrics(metrics):
    out = {}
    for name, value in metrics.items():
        try:
            out[str(name)] = _wire.as_float(value) if not isinstance(value, (int, bool)) else int(value)
        except (TypeError, ValueError):
            raise ValueError("the metric %s of a model is %r, not a number" % (name, value)) from None
    return out


def _lineage():
    """Where this process knows that the model comes from."""
    found = {}
    if os.environ.get("ML_ID"):
        found["experiment"] = os.environ["ML_ID"]
        if _run._current is not None and os.environ.get("HOPS_CONTROLLER"):
            found["trial"], found["params"] = _run._current.id, _run._current.params
    return found


def _versions(fs, directory):
    try:
        return sorted(int(s["pathSuffix"]) for s in fs.list(directory) if s["type"] == "DIRECTORY" and re.fullmatch(r"[1-9]\d*", s["pathSuffix"]))
    except FileNotFoundError:
        return []


def _newest(fs, directory):
    return max(_versions(fs, directory), default=0)


def _read(fs, path):
    try:
        return json.loads(fs.read(path, 0, MAX_MODEL).decode("utf-8"))
    except FileNotFoundError:
        return None


def _sweep(fs, directory):
    """Remove what writers that died have left, a day ago or earlier."""
    for s in fs.list(directory):
        if s["pathSuffix"].startswith(".new-") and s.get("modificationTime", 0) and time.time() * 1000 - s["modificationTime"] > DAY_MS:
            fs.delete("%s/%s" % (directory, s["pathSuffix"]), recursive=True)


def _crc(path):
    crc = 0
    with open(path, "rb") as f:
        while True:
            data = f.read(1 << 20)
            if not data:
                return crc
            crc = zlib.crc32(data, crc)


def _copy(fs, path, target):
    """Copy a file, or what is in a directory, below target. Returns (where it was, the files)."""
    path = str(path)
    if os.path.exists(path):
        found = []
        for full, name in _local(path):
            hdfs.put(full, posixpath.join(target, name))
            found.append({"name": name, "size": os.path.getsize(full), "crc32": _crc(full)})
        return "%s:%s" % (os.uname().nodename, os.path.abspath(path)), found
    source = hdfs.abs_path(path)
    try:
        kind = fs.status(source)["type"]
    except FileNotFoundError:
        raise FileNotFoundError("the model %s is neither here nor in the cluster (%s)" % (path, source)) from None
    if kind == "FILE":
        names = [posixpath.basename(source)]
        base = posixpath.dirname(source)
    else:
        base = source
        names = [posixpath.relpath(s["path"], source) for s in hdfs.lsl(source, True) if s["type"] == "FILE"]
    found = []
    for name in names:
        if name == "model.json":
            continue  # of another version
        size, crc = 0, 0
        length = fs.status(posixpath.join(base, name))["length"]
        with hdfs._Writer(posixpath.join(target, name), False) as out:
            for offset in range(0, length, hdfs.PIECE):
                data = fs.read(posixpath.join(base, name), offset, min(hdfs.PIECE, length - offset))
                size, crc = size + len(data), zlib.crc32(data, crc)
                out.write(data)
        found.append({"name": name, "size": size, "crc32": crc})
    return source, found


def _local(path):
    if os.path.isfile(path):
        yield path, os.path.basename(path)
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            relative = os.path.relpath(full, path).replace(os.sep, "/")
            if relative != "model.json":
                yield full, relative
