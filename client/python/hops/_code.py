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

# Packages that are there in every executor.
OURS = ("hops", "maggy", "tensorflowonspark")

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


ENTRY = "__hops_entry__"


class Packed:
    """An artifact, and how to find in it what was packed beside the function: (entry, arguments) each."""

    def __init__(self, artifact, entries):
        self.artifact, self.entries = artifact, entries


def pack(fn):
    """The artifact of a function. CodeError: it cannot travel."""
    return pack_all(fn).artifact


def pack_all(fn, also=(), extra=None):
    """The artifact of a function, or of a _wrapped.Function with what it is given, and of other objects: optimizers, stopping rules. extra are further files.
    CodeError: something cannot travel."""
    from hops import _wrapped
    wrapped = isinstance(fn, _wrapped.Function)
    parts = fn.parts() if wrapped else [fn]
    roots = parts + [o if isinstance(o, type) else type(o) for o in also]
    problem = next(filter(None, map(_why_not, roots)), None)
    if problem is None and cloudpickle() and any(map(_in_no_file, roots)):
        problem = ""  # as a pickle it comes back as it is; as source only what is sure to be the same
    if problem is not None:
        artifact_files, entries = _pickled(problem, {"also_%d.pkl" % i: o for i, o in enumerate(also)})
        return Packed(_pickle(fn, problem, {**artifact_files, **(extra or {})}), entries)
    files, places = _places(roots)
    files.update(extra or {})
    entries = []
    for i, (o, place) in enumerate(zip(also, places[len(parts):])):
        arguments = {} if isinstance(o, type) else _constructed(o)
        if arguments is None:
            pickled, found = _pickled("%s was made with arguments that JSON does not have" % type(o).__name__, {"also_%d.pkl" % i: o})
            files.update(pickled)
            entries += found
        else:
            entries.append((place, arguments))
    if not wrapped:
        return Packed(Artifact(places[0], files), entries)
    files[ENTRY + ".py"] = fn.text(dict(zip(map(id, parts), places)), files).encode("utf-8")
    return Packed(Artifact(ENTRY + ":function", files, "wrapped.pkl" in files), entries)


def _constructed(thing):
    from maggy.optimizer import constructed
    return constructed(thing)


def _in_no_file(thing):
    return thing.__module__ == "__main__" and (not _script() or _typed(thing))


def _script():
    """The path of the script that runs, None at a prompt."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return path if path and os.path.exists(path) else None


def _places(roots):
    """Files that functions and classes are found in, and where in them: ({name: bytes}, ["module:qualname"])."""
    files, places, typed = {}, [], []
    for thing in roots:
        module = thing.__module__
        places.append("%s:%s" % (MAIN if module == "__main__" else module, thing.__qualname__))
        if module != "__main__":
            path = getattr(sys.modules.get(module), "__file__", None)
            if path is not None and not _installed(path) and module.split(".")[0] not in OURS:
                files.update(_top_level(module, path))
        elif _in_no_file(thing):
            typed.append(thing)
        else:
            files.update(_beside(_script()))
            with open(_script(), "rb") as f:
                files[MAIN + ".py"] = f.read()
    if typed:
        files.update(_loaded_beside())
        files[MAIN + ".py"] = _sources(*typed).encode("utf-8")
    return files, places


def cloudpickle():
    """The module cloudpickle, or None where it is not installed."""
    try:
        import cloudpickle as found
    except ImportError:
        return None
    return found


def _why_not(fn):
    if isinstance(fn, type):
        return "%s is defined inside a function: move it to the top level" % fn.__qualname__ if "<locals>" in fn.__qualname__ else None
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


def _pickled(problem, objects):
    """Objects as pickles, with the cloudpickle that made them: nothing need be installed on the nodes. ({name: bytes}, [(entry, {})])."""
    module = cloudpickle()
    if module is None:
        raise CodeError("the function cannot be sent: %s (or install cloudpickle here: with it such functions travel)" % problem)
    files = _loaded_beside()
    folder = os.path.dirname(module.__file__)
    _walk(folder, os.path.dirname(folder), files)
    for name, thing in objects.items():
        try:
            files[name] = module.dumps(thing)
        except Exception as e:  # noqa: B902 - whatever the objects that it names raise
            raise CodeError("%s cannot be sent: %s" % (getattr(thing, "__qualname__", type(thing).__name__), e)) from None
    return files, [("cloudpickle:" + name, {}) for name in objects]


def _pickle(fn, problem, more):
    files, entries = _pickled(problem, {"function.pkl": fn})
    return Artifact(entries[0][0], {**more, **files}, pickled=True)


def _interactive():
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def _typed(fn):
    """Whether a function of __main__ was typed at a prompt or into a notebook, so that it is in no file."""
    if isinstance(fn, type):
        methods = [m for m in vars(fn).values() if isinstance(m, types.FunctionType)]
        return _interactive() or any(m.__code__.co_filename.startswith("<") for m in methods)
    return _interactive() or inspect.unwrap(fn).__code__.co_filename.startswith("<")


def _loaded_beside():
    """Modules of the working directory and the script's that are imported: a function that is in no file may use them."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    here = tuple({os.getcwd() + os.sep} | ({os.path.dirname(os.path.abspath(main)) + os.sep} if main else set()))
    files = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if (isinstance(path, str) and path.endswith(".py") and os.path.abspath(path).startswith(here) and module.__name__ != "__main__"
                and module.__name__.split(".")[0] not in OURS and not _installed(path)):
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
            if os.path.exists(os.path.join(full, "__init__.py")) and name not in EXCLUDED and name not in OURS:
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


def _sources(*roots):
    """A module made of the source of functions and classes and, recursively, of what it names: functions, classes, modules, and values that
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
                            "argument, or install cloudpickle here" % (roots[0].__name__, name, type(obj).__name__))
        parts.append("%s = %s\n" % (name, text))

    for root in roots:
        add(root, root.__name__)
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
