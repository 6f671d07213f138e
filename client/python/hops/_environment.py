"""What an experiment ran with: Python and its packages, driver and GPUs, and the versions of the data that its specification
names. Recorded once, by the first executor that gets to it (docs/reference/executor-protocol.md, environment.json, data.json)."""
import json
import os
import platform
import posixpath
import socket
import subprocess
import sys
import time

MAX_FILES = 10_000  # of a directory that are counted; as in training/history/data.go
MAX_PATHS = 100
TURN_MS = 60_000
_DRIVER = "/proc/driver/nvidia/version"


def freeze():
    """The environment of this process as a dict: python, platform, kernel, host, packages by name, and with an NVIDIA driver
    driver, cuda and gpus. What cannot be found out is left out."""
    out = {
        "python": "%s %s" % (platform.python_implementation(), platform.python_version()),
        "executable": sys.executable, "platform": platform.platform(), "kernel": platform.release(), "host": socket.gethostname(),
        "packages": _packages(), "recorded": int(time.time() * 1000),
    }
    out.update(_nvidia())
    return out


def _packages():
    from importlib import metadata
    out = {}
    for d in metadata.distributions():
        try:
            name, version = d.metadata["Name"], d.version
        except Exception:  # a damaged installation says nothing about the others
            continue
        if name and version:
            out.setdefault(str(name).lower().replace("_", "-"), str(version))  # the first on the path is the one imported
    return out


def _nvidia():
    out = {}
    try:
        with open(_DRIVER, encoding="utf-8", errors="replace") as f:
            words = f.readline().split()
        out["driver"] = next(w for w in words if w[0].isdigit() and "." in w)
    except (OSError, StopIteration):
        return out
    try:
        text = subprocess.run(["nvidia-smi"], capture_output=True, timeout=20, text=True, errors="replace").stdout
        if "CUDA Version:" in text:
            out["cuda"] = text.split("CUDA Version:")[1].split()[0]
        names = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, timeout=20, text=True, errors="replace")
        if names.returncode == 0:
            out["gpus"] = [line.strip() for line in names.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError):
        pass
    return out


def _paths(spec):
    """(key, path) of what looks like a path of the filesystem in the arguments and files of a specification."""
    found = []

    def look(key, value):
        if isinstance(value, str):
            scheme, colon, rest = value.partition("://")
            path = value
            if colon:
                if scheme not in ("hdfs", "webhdfs", "swebhdfs"):
                    return
                path = "/" + rest.partition("/")[2]
            if path.startswith("/") and len(path) > 1 and len(path) < 4096 and "\n" not in path:
                found.append((key, posixpath.normpath(path)))
        elif isinstance(value, dict):
            for k in sorted(value, key=str):
                look("%s.%s" % (key, k), value[k])
        elif isinstance(value, list):
            for i, v in enumerate(value):
                look("%s[%d]" % (key, i), v)

    look("arguments", spec.get("arguments") or {})
    for f in spec.get("files") or []:
        look("files.%s" % f.get("name"), f.get("uri"))
    return found[:MAX_PATHS]


def data_versions(fs, spec):
    """The versions of the paths that a specification names: a list of dicts with key, path, length, mtime (ms), file_id; of a
    directory also files, their length in all and the newest mtime. A path that is none of the filesystem is left out."""
    out = []
    for key, path in _paths(spec):
        try:
            status = fs.status(path)
        except FileNotFoundError:
            continue  # text that begins with a slash
        except OSError as e:
            out.append({"key": key, "path": path, "length": 0, "mtime": 0, "file_id": 0, "problem": str(e)[:200]})
            continue
        v = {"key": key, "path": path, "length": status["length"], "mtime": status["modificationTime"], "file_id": status["fileId"]}
        if status["type"] == "DIRECTORY":
            v.update(directory=True, length=0, files=0)
            try:
                _sum(fs, path, v)
            except (OSError, OverflowError) as e:
                v["problem"] = str(e)[:200]
        out.append(v)
    return out


def _sum(fs, path, v):
    for s in fs.list(path):
        if s["type"] == "DIRECTORY":
            _sum(fs, posixpath.join(path, s["pathSuffix"]), v)
            continue
        v["files"] += 1
        if v["files"] > MAX_FILES:
            raise OverflowError("it has more than %d files, which are not looked at" % MAX_FILES)
        v["length"] += s["length"]
        v["mtime"] = max(v["mtime"], s["modificationTime"])


def record(fs, directory):
    """Writes environment.json and data.json into an experiment's directory, unless they are there. Nothing that goes wrong here
    keeps an experiment from running: the problem is returned as text, None if there was none."""
    try:
        if not _turn(fs, posixpath.join(directory, "environment.json")):
            return None
        if not fs.exists(posixpath.join(directory, "data.json")):
            spec = json.loads(fs.read(posixpath.join(directory, "experiment.json")))["spec"]
            _write(fs, posixpath.join(directory, "data.json"), data_versions(fs, spec))
    except Exception as e:
        return "%s: %s" % (type(e).__name__, e)
    return None


def _turn(fs, path):
    """Write environment.json if it is not there. Whether this executor is to look at the data: it was the one that wrote it, or who did has
    had the time. Hundreds of executors that begin together do not list the same directories."""
    try:
        return time.time() * 1000 - fs.status(path)["modificationTime"] > TURN_MS
    except FileNotFoundError:
        return _write(fs, path, freeze())


def _write(fs, path, document):
    """Whole or not at all; the first of several executors wins. False: it was another one."""
    tmp = "%s.%s.%d.tmp" % (path, socket.gethostname(), os.getpid())
    fs.create(tmp, json.dumps(document, sort_keys=True, indent=1).encode(), overwrite=True)
    try:
        return fs.rename(tmp, path)  # onto one that is there it answers false, and that one counts
    finally:
        if fs.exists(tmp):
            fs.delete(tmp)
