"""How a function travels: as a code artifact, a zip of source files with manifest.json, named by its own SHA-256."""
import ast
import hashlib
import inspect
import io
import json
import os
import sys
import sysconfig
import textwrap
import types
import zipfile

MAX_BYTES = 16 << 20
MAX_FILES = 2000
# Folders that are never part of a program.
EXCLUDED = {"__pycache__", "node_modules", "venv", "env", "site-packages", "build", "dist"}

MAIN = "__hops_main__"


class CodeError(TypeError):
    """The function cannot travel; the message names what is in the way."""


class Artifact:
    """data is the zip, sha256 its name, entry what to call in it ("module:qualname")."""

    def __init__(self, entry, files, pickled=False):
        self.entry = entry
        manifest = {
            "entry": entry,
            "python": "%d.%d" % sys.version_info[:2],
            "pickled": pickled,
            "files": [{"name": n, "size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in sorted(files.items())],
        }
        total = sum(len(d) for d in files.values())
        if total > MAX_BYTES or len(files) > MAX_FILES:
            raise CodeError("%s needs %d files of %d bytes in all, more than %d files or %d bytes: move it into a folder of its own"
                            % (entry, len(files), total, MAX_FILES, MAX_BYTES))
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
            for name, data in [("manifest.json", json.dumps(manifest, sort_keys=True, indent=1).encode())] + sorted(files.items()):
                info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files make the same artifact
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                z.writestr(info, data)
        self.data = out.getvalue()
        self.sha256 = hashlib.sha256(self.data).hexdigest()


def pack(fn):
    """The artifact of a function. CodeError: it cannot travel."""
    problem = _why_not(fn)
    if problem:
        return _pickle(fn, problem)
    module = sys.modules.get(fn.__module__)
    path = getattr(module, "__file__", None)
    if fn.__module__ != "__main__":
        if path is None or _installed(path):
            return Artifact("%s:%s" % (fn.__module__, fn.__qualname__), {})
        return Artifact("%s:%s" % (fn.__module__, fn.__qualname__), _top_level(fn.__module__, path))
    if path and os.path.exists(path) and not _typed(fn):
        files = _beside(path)
        with open(path, "rb") as f:
            files[MAIN + ".py"] = f.read()
        return Artifact("%s:%s" % (MAIN, fn.__qualname__), files)
    # It lives in no file: as a pickle it comes back as it is; as source only what is sure to be the same.
    if cloudpickle():
        return _pickle(fn, "")
    return Artifact("%s:%s" % (MAIN, fn.__qualname__), dict(_loaded_beside(), **{MAIN + ".py": _sources(fn).encode("utf-8")}))


def cloudpickle():
    """The module cloudpickle, or None where it is not installed."""
    try:
        import cloudpickle as found
    except ImportError:
        return None
    return found


def _why_not(fn):
    if inspect.ismethod(fn):
        return "%s is bound to an object: pass a plain function" % fn.__qualname__
    if not isinstance(fn, types.FunctionType):
        return "%r is not a function written in Python" % (fn,)
    if fn.__code__.co_freevars:
        return "%s uses the variable %s of the function around it: pass it as a parameter, or make it global" % (
            fn.__qualname__, ", ".join(repr(v) for v in fn.__code__.co_freevars))
    if fn.__name__ == "<lambda>":
        return "a lambda has no name to find it by: use def"
    if "<locals>" in fn.__qualname__:
        return "%s is defined inside another function: move it to the top level" % fn.__qualname__
    return None


def _pickle(fn, problem):
    """A function as a pickle, with the cloudpickle that made it: nothing need be installed on the nodes."""
    module = cloudpickle()
    if module is None:
        raise CodeError("the function cannot be sent: %s (or install cloudpickle here: with it such functions travel)" % problem)
    files = _loaded_beside()
    folder = os.path.dirname(module.__file__)
    _walk(folder, os.path.dirname(folder), files)
    try:
        files["function.pkl"] = module.dumps(fn)
    except Exception as e:  # noqa: B902 - whatever the objects that the function names raise
        raise CodeError("%s cannot be sent: %s" % (getattr(fn, "__qualname__", fn), e)) from None
    return Artifact("cloudpickle:function.pkl", files, pickled=True)


def _interactive():
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def _typed(fn):
    """Whether a function of __main__ was typed at a prompt or into a notebook, so that it is in no file."""
    return _interactive() or inspect.unwrap(fn).__code__.co_filename.startswith("<")


def _loaded_beside():
    """Modules of the working directory and the script's that are imported: a function that is in no file may use them."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    here = tuple({os.getcwd() + os.sep} | ({os.path.dirname(os.path.abspath(main)) + os.sep} if main else set()))
    files = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if (isinstance(path, str) and path.endswith(".py") and os.path.abspath(path).startswith(here) and module.__name__ != "__main__"
                and module.__name__.split(".")[0] not in ("hops", "maggy") and not _installed(path)):
            base = os.path.dirname(os.path.abspath(path))
            for _ in range(module.__name__.count(".") + (os.path.basename(path) == "__init__.py")):
                base = os.path.dirname(base)
            _take(os.path.abspath(path), base, files)
    return files


def _installed(path):
    path = os.path.abspath(path)
    roots = {sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.startswith(os.path.abspath(r) + os.sep) for r in roots) or "site-packages" in path or "dist-packages" in path


def _top_level(name, path):
    """The file of a module, or all sources of the package that it lies in."""
    depth = name.count(".") + (os.path.basename(path) == "__init__.py")
    if depth == 0:
        files = _beside(path)
        with open(path, "rb") as f:
            files[os.path.basename(path)] = f.read()
        return files
    root = os.path.abspath(path)
    for _ in range(depth):
        root = os.path.dirname(root)
    files = {}
    _walk(root, os.path.dirname(root), files)
    return files


def _beside(path):
    """Python files and packages in the folder of a script."""
    folder = os.path.dirname(os.path.abspath(path))
    files = {}
    for name in sorted(os.listdir(folder)):
        full = os.path.join(folder, name)
        if os.path.isdir(full):
            if os.path.exists(os.path.join(full, "__init__.py")) and name not in EXCLUDED and name not in ("hops", "maggy"):
                _walk(full, folder, files)
        elif name.endswith(".py") and not os.path.samefile(full, path):
            _take(full, folder, files)
    return files


def _walk(directory, base, files):
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if f not in EXCLUDED and not f.startswith("."))
        for name in sorted(names):
            if name.endswith(".py"):
                _take(os.path.join(folder, name), base, files)


def _take(full, base, files):
    if len(files) >= MAX_FILES or os.path.getsize(full) > MAX_BYTES:
        raise CodeError("%s holds too much to be sent with a function (limit: %d files, %d bytes): move the program into a folder of its own"
                        % (base, MAX_FILES, MAX_BYTES))
    with open(full, "rb") as f:
        files[os.path.relpath(full, base).replace(os.sep, "/")] = f.read()


def _sources(fn):
    """A module made of a function's source and, recursively, of what it names: functions, classes, modules, and values that
    come back from their literal as they are."""
    parts, seen = [], set()

    def add(obj, name):
        if name in seen:
            return
        seen.add(name)
        if isinstance(obj, types.ModuleType):
            parts.append("import %s%s\n" % (obj.__name__, "" if obj.__name__ == name else " as " + name))
            return
        if isinstance(obj, (types.FunctionType, type)):
            if obj.__module__ != "__main__":
                parts.append("from %s import %s%s\n" % (obj.__module__, obj.__name__, "" if obj.__name__ == name else " as " + name))
                return
            try:
                source = textwrap.dedent(inspect.getsource(obj))
            except (OSError, TypeError):
                raise CodeError("the source of %s %s cannot be found: define it in a file, or install cloudpickle here: with it what is typed at a "
                                "prompt travels" % ("class" if isinstance(obj, type) else "function", name)) from None
            for part, value in _globals_of(obj):
                add(value, part)
            parts.append(source)
            return
        text = _literal(obj)
        if text is None:
            raise CodeError("%s uses the global variable %r, a %s that does not travel unchanged: make it inside the function, pass it as an "
                            "argument, or install cloudpickle here" % (fn.__name__, name, type(obj).__name__))
        parts.append("%s = %s\n" % (name, text))

    add(fn, fn.__name__)
    return "\n".join(parts)


# A value with a longer literal does not belong into source code.
MAX_LITERAL = 1 << 20


def _literal(obj):
    """The literal of a value made of Python's own types, None for any other."""
    try:
        text = repr(obj)
        if len(text) <= MAX_LITERAL and _same(ast.literal_eval(text), obj):
            return text
    except Exception:  # noqa: B902 - repr of somebody's class; literal_eval of what is none
        pass
    return None


def _same(a, b):
    """Whether two values are equal with all their types. NaN is not."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(_same(x, y) and _same(a[x], b[y]) for x, y in zip(a, b))
    if isinstance(a, (set, frozenset)):
        return a == b and sorted(map(repr, a)) == sorted(map(repr, b))
    return a == b and isinstance(a, (bool, int, float, complex, str, bytes, type(None)))


def _globals_of(obj):
    """(name, value) of the globals that a function, or the methods of a class, use."""
    codes, found = [], {}
    if isinstance(obj, types.FunctionType):
        codes, scope = [obj.__code__], obj.__globals__
    else:
        methods = [m for m in vars(obj).values() if isinstance(m, types.FunctionType)]
        codes, scope = [m.__code__ for m in methods], sys.modules["__main__"].__dict__
        for base in obj.__bases__:
            if base.__module__ == "__main__":
                found[base.__name__] = base
    while codes:
        code = codes.pop()
        codes.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
        for name in code.co_names:
            if name in scope:
                found[name] = scope[name]
    return sorted(found.items())
