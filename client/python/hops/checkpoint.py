"""Checkpoints of a trial: made visible all at once, and known to the controller before they count.

save() writes into a directory of its own, adds MANIFEST.json with the size and the checksum of every file, renames the directory to
step-N/ and tells the controller, which looks whether all is there (training/checkpoint/FORMAT.md). With wait=False the object is
copied, and written while the training goes on. Tensors are kept in shards, and a shard that has not changed is not written
again. A trial that is resumed finds the checkpoint that it was resumed from with load(), latest() or restore().

In a gang rank 0, the chief, saves for all: save() and commit_dir() do nothing in the others, so that they may be called everywhere.
All ranks find the checkpoints that their attempt began with; of newer ones only the chief knows, and
load(dist.context().broadcast_object(latest())[1]) loads them everywhere.
"""
import hashlib
import io
import json
import os
import pickle
import posixpath
import re
import shutil
import sys
import tempfile
import threading
import zlib

from hops import _run, _stream, _tensors

MANIFEST = "MANIFEST.json"
# Shards of at least so many bytes are shared between checkpoints.
MIN_BLOB = 64 << 10
# Of at least so many bytes, the first save of a process looks among those of other trials.
MIN_SEARCH = 1 << 20
# Files that are written or read at a time.
WORKERS = 3
# Files of one checkpoint; as in training/checkpoint/manifest.go.
MAX_FILES = 1000
# Bytes that are read at a time.
RANGE = 16 << 20

FORMATS = ("tensors", "safetensors", "torch", "npz", "keras", "json", "pickle", "bytes", "files")


class CheckpointError(OSError):
    """A checkpoint cannot be written, or is not what was written."""


class CheckpointMismatch(ValueError):
    """A checkpoint is of another shape than the model that it is to be loaded into."""


# -- saving

class Save:
    """A checkpoint that is being written. directory is its path, once it is committed."""

    def __init__(self, step):
        self.step, self.directory = step, None
        self._error, self._told, self._over, self._process = None, False, threading.Event(), os.getpid()

    def done(self):
        """Whether it is committed, or has failed."""
        return self._over.is_set() or self._process != os.getpid()

    def wait(self, timeout=None):
        """Returns the directory when the checkpoint is committed. Raises what went wrong; TimeoutError after timeout seconds."""
        if self._process != os.getpid():
            raise RuntimeError("the checkpoint of step %d is written by the process that this one was forked from" % self.step)
        if not self._over.wait(timeout):
            raise TimeoutError("the checkpoint of step %d is not committed after %.0f s" % (self.step, timeout))
        if self._error is not None:
            self._told = True
            raise self._error
        return self.directory

    def _run(self, work):
        try:
            self.directory = work()
        except BaseException as e:  # noqa: B902 - wait() and the next save raise it
            self._error = e
        finally:
            self._over.set()


class _State:
    """What saves of one trial know of each other."""

    def __init__(self, trial):
        self.trial = trial
        self.last = None  # the step that was saved last
        self.flight = None  # the Save that is written, or was written last
        self.blobs = None  # (size, SHA-256) -> name, of the checkpoint before; None: not looked at yet
        self.samples = set()  # of the same shards: Buffers.sample()
        self.fresh = True  # no save has been committed
        self.copies = {}  # memory for the tensors of a save that is not waited for


_states = {}


def _state():
    trial = _run.current()
    found = _states.get(id(trial))
    if found is None or found.trial is not trial:
        finish()  # what an earlier trial of this process left
        _states.clear()
        found = _states[id(trial)] = _State(trial)
    return found


# A process that was forked writes nothing of what its parent has begun.
os.register_at_fork(after_in_child=_states.clear)


def save(obj=None, step=None, metric=None, wait=True, format=None, path=None):
    """Save obj at a step (epoch), or what is at a local path: a file or a directory. Steps rise.

    obj is anything: objects with state_dict(), dicts and lists with tensors of torch or numpy anywhere in them, Keras models,
    bytes, a dict of file names to bytes, what JSON carries; everything else is pickled. format names one of
    FORMATS instead: "safetensors" for a dict of names to tensors that other programs read, "torch" for torch.save, "npz".

    Returns the directory when the checkpoint is committed. With wait=False it returns a Save as soon as obj may be changed
    again; one is written at a time, the next save waits for it. What goes wrong is raised by its wait(), else by the next save,
    else it fails the trial when the function returns. In ranks of a gang other than 0 nothing is saved and there is no directory."""
    state = _state()
    trial, step = state.trial, _run.whole_number(step)
    if (obj is None) == (path is None):
        raise TypeError("save(obj, step) saves an object, save(path=..., step=...) what is at a local path")
    if format is not None and format not in FORMATS:
        raise ValueError("format is %r, and the formats are %s" % (format, ", ".join(FORMATS)))
    if metric is not None:
        metric = _run.number(metric)
    elif trial.last_metric is not None and trial.last_step is not None and trial.last_step <= step:
        metric = trial.last_metric
    if _in_shares(obj):
        raise ValueError("each rank has a share of this alone, as of zero_lvl or FSDP: save what model.state_dict() and torch.distributed.checkpoint.state_dict."
                         "get_optimizer_state_dict(…, options=StateDictOptions(full_state_dict=True)) return, which every rank calls, or take torch.distributed.checkpoint")
    _settle(state)
    if state.last is not None and step <= state.last:
        raise ValueError("a checkpoint of step %d was saved after one of step %d: steps must rise" % (step, state.last))
    wished = trial.saving()
    if trial.rank:
        state.last, done = step, Save(step)
        done._over.set()
        return None if wait else done
    plan = _Plan(state, step, metric)
    try:
        plan.take(obj, format, path)
        _check_count(plan.files)
        if not wait:
            plan.hold()
    except BaseException:
        plan.close()
        trial.saving(wanted=wished)
        raise

    def work():
        try:
            return plan.write()
        except BaseException:
            trial.saving(wanted=wished)
            raise
        finally:
            plan.close()

    done = state.flight = Save(step)
    if wait:
        done._run(work)
        return done.wait()
    threading.Thread(target=done._run, args=(work,), name="checkpoint of step %d" % step, daemon=True).start()
    return done


def finish(quiet=False):
    """Wait for the checkpoint that is being written, and raise what went wrong with it if nobody was told. quiet: print it."""
    for state in [*_states.values()]:
        try:
            _settle(state)
        except BaseException as e:  # noqa: B902
            if not quiet:
                raise
            print(str(e), file=sys.stderr, flush=True)


def _settle(state):
    """No save is in flight after this. Raises what went wrong with the last one if nobody was told."""
    flight = state.flight
    if flight is None:
        return
    flight._over.wait()
    state.flight = None
    if flight._error is not None and not flight._told:
        flight._told = True
        e = flight._error
        raise CheckpointError("the checkpoint of step %d of trial %s was not saved: %s; the trial would go on from an older one (save with wait=True to "
                              "see it at once)" % (flight.step, state.trial.id, str(e) or type(e).__name__)) from e


def requested():
    """Whether a checkpoint is wanted now: the container of this trial will be taken away soon. True until save() saves
    one. A function that looks once an epoch, or more often, and saves, loses no more than what it did since."""
    return _run.current().checkpoint_requested()


class _Plan:
    """What one save writes: files by name, each a source or a shard."""

    def __init__(self, state, step, metric):
        self.state, self.trial, self.step, self.metric = state, state.trial, step, metric
        self.format, self.files, self.more = None, [], {}
        self._tree = None  # of format tensors: (tree, tensors), not divided yet
        self._spool = None
        self._held = False  # the tensors are copies, which nobody changes

    def take(self, obj, format, path):
        if path is not None:
            return self._take_path(path)
        tree = None
        if format is None:
            format, tree = _choose(obj)
        self.format = format
        if self.format == "tensors":
            self._tree = tree or _tensors.plain(obj)
        elif self.format == "safetensors":
            self._tree = None, _named(obj)
        else:
            self.files = [(name, source) for name, source in _SOURCES[self.format](obj, self)]

    def _take_path(self, path):
        if os.path.isfile(path):
            self.format, self.files = "directory", [(os.path.basename(path), _stream.LocalFile(path))]
            _check_name(self.files[0][0])
            return
        self.format = "directory"
        for directory, _, names in os.walk(path):
            for name in names:
                full = os.path.join(directory, name)
                _check_name(os.path.relpath(full, path).replace(os.sep, "/"))
                self.files.append((os.path.relpath(full, path).replace(os.sep, "/"), _stream.LocalFile(full)))
        self.files.sort(key=lambda f: f[0])
        if not self.files:
            raise FileNotFoundError("%s is neither a file nor a directory with files: it cannot be a checkpoint" % path)

    def hold(self):
        """After this the object may change."""
        if self._tree is not None:
            self._held = True
            tree, tensors = self._tree
            named = self.format == "safetensors"
            before, self.state.copies = self.state.copies, {}
            copies = []
            for n, t in enumerate(t for _, t in tensors) if named else enumerate(tensors):
                copy = t.copy(before.pop(n, None))
                copies.append(copy)
                self.state.copies[n] = copy
            _tensors.wait_for_copies(t for _, t in tensors) if named else _tensors.wait_for_copies(tensors)
            self._tree = tree, [(name, c) for (name, _), c in zip(tensors, copies)] if named else copies
            return
        for i, (name, source) in enumerate(self.files):
            if isinstance(source, _stream.LocalFile) and source.path.startswith(self._directory() + os.sep):
                continue
            if isinstance(source, _stream.Buffers) and all(isinstance(b, bytes) for b in source.buffers):
                continue
            local = os.path.join(self._directory(), "%06d" % i)
            with open(local, "wb") as f:
                f.writelines(source)
            self.files[i] = name, _stream.LocalFile(local)

    def _directory(self):
        """A local directory that lasts as long as this save."""
        if self._spool is None:
            self._spool = _scratch()
        return self._spool

    def close(self):
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)
        self._tree, self.files = None, []

    def _divide(self):
        """The files of tensors."""
        if self._tree is None:
            return
        tree, tensors = self._tree
        if self.format == "safetensors":
            like = "np" if all(t.like == "numpy" for _, t in tensors) else "pt"
            self.files = [("model.safetensors", _Whole(_tensors.Shard(tensors, {"format": like})))]
            return
        self.files = [("tree.json", _stream.Buffers([json.dumps(tree, separators=(",", ":")).encode("ascii")]))]
        for i, numbers in enumerate(_tensors.shards(tree, tensors)):
            self.files.append(("%04d.safetensors" % (i + 1), _tensors.Shard([(str(n), tensors[n]) for n in numbers])))

    def write(self):
        """Write and commit. Returns the directory."""
        self._divide()
        reuse = True
        while True:
            temporary = self.trial.unnamed(self._final())
            try:
                files, reused, samples = self._upload(temporary, reuse)
                final = self._expose(temporary, files)
            except Exception:
                self._discard(temporary)
                raise
            try:
                self.commit(final, files)
                break
            except _run.CheckpointIncomplete:
                # A shard of another checkpoint that was there a moment ago is there no more.
                if not reused:
                    raise
                reuse = False
        self.state.last, self.state.fresh = self.step, False
        self.state.blobs, self.state.samples = _blobs_of(files), samples
        return final

    def commit(self, final, files):
        try:
            self.trial.commit_checkpoint(self.step, final, files, self.metric)
        except _run.CheckpointRefused:
            raise
        except BaseException:
            self.state.last = self.step  # the controller may have recorded it: nothing else may get its name
            raise

    def _discard(self, temporary):
        """Remove what a save has left that failed. If that fails too, the controller does it when the experiment is over."""
        try:
            self.trial.fs.delete(temporary, recursive=True)
        except Exception:  # noqa: B902 - why the save failed is what counts
            pass

    def _upload(self, temporary, reuse):
        """(files as the manifest names them, whether shards of other checkpoints are among them, samples of the shards)."""
        fs = self.trial.fs
        if reuse and self.state.blobs is None:
            self.state.blobs = _blobs_before(self.trial)
        known, reused, samples = self.state.blobs if reuse else {}, [], set()

        def one(file):
            name, source = file
            if not isinstance(source, _tensors.Shard) or source.size < MIN_BLOB or not self.trial.blobs:
                counted = _stream.Counted(_stream.Buffers(source.buffers()) if isinstance(source, _tensors.Shard) else source)
                fs.create(posixpath.join(temporary, name), counted)
                return {"name": name, "size": counted.length, "crc32": counted.crc32}
            content = _stream.Buffers(source.buffers())
            sample = content.sample()
            samples.add(sample)
            # A shard that has most likely changed is hashed on its way out. The others are hashed before. So are those that may be changed by
            # another thread without a trace: twice, which shows it. Each gets its name when all of it is there.
            suspect = source.unwatched and not self._held
            sha = None
            if suspect or reuse and (self.state.fresh or sample in self.state.samples):
                sha = _stream.sha256(content)
                found = known.get((content.size, sha))
                if found is None and reuse and self.state.fresh and content.size >= MIN_SEARCH:
                    found = _search(fs, self.trial.blobs, sha, content.size)
                if found is not None:
                    reused.append(found)
                    return {"name": name, "size": content.size, "blob": found}
            if sha is not None and not suspect:
                fs.create(posixpath.join(temporary, name), content)
            else:
                hashed = _stream.Hashed(content)
                fs.create(posixpath.join(temporary, name), hashed)
                if suspect and hashed.sha256 != sha:
                    raise _changed(self.step)
                sha = hashed.sha256
            blob = self._blob(sha)
            _move(fs, posixpath.join(temporary, name), _blob_path(self.trial.blobs, blob))
            return {"name": name, "size": content.size, "blob": blob}

        files = _stream.parallel(one, self.files, WORKERS)
        if not self._held and any(source.changed() for _, source in self.files if isinstance(source, (_tensors.Shard, _Whole))):
            raise _changed(self.step)
        return files, bool(reused), samples

    def _blob(self, sha):
        return "%s-%s-%d-%d" % (sha, self.trial.id, self.trial.attempt, self.step)

    def _final(self):
        return posixpath.join(self.trial.checkpoints, "step-%d" % self.step)

    def _expose(self, temporary, files):
        """Add the manifest, and give the directory its name."""
        final = self._final()
        manifest = dict(self.more, version=1, trial=self.trial.id, attempt=self.trial.attempt, step=self.step, files=files, format=self.format)
        if any("blob" in f for f in files):
            manifest.update(version=3, blobs=posixpath.relpath(self.trial.blobs, final))
        self.trial.fs.create(posixpath.join(temporary, MANIFEST), json.dumps(manifest, sort_keys=True).encode("ascii"), overwrite=True)
        _rename(self.trial.fs, temporary, final)
        return final


def _changed(step):
    return CheckpointError("the checkpoint of step %d was not saved: a tensor of it was changed meanwhile, by another thread; wait with the change until "
                           "save() has returned" % step)


def _scratch():
    """A new local directory: on a node that of the trial, which goes with its process."""
    return tempfile.mkdtemp(prefix="checkpoint-", dir=os.getcwd() if os.environ.get("HOPS_CONTAINER_ID") else None)


def _rename(fs, temporary, final):
    if fs.rename(temporary, final):
        return
    # What an earlier save left under this name was refused, or is of an earlier run in a local directory. It
    # goes as a whole, so that nobody takes what is left of it for a checkpoint.
    fs.delete(final + ".old", recursive=True)
    fs.rename(final, final + ".old")
    if not fs.rename(temporary, final):
        raise CheckpointError("checkpoint %s: cannot rename it from %s" % (final, temporary))
    fs.delete(final + ".old", recursive=True)


class _Whole:
    """A shard that is a file of its own in the checkpoint's directory."""

    def __init__(self, shard):
        self._shard, self.size = shard, shard.size

    def __iter__(self):
        return iter(_stream.Buffers(self._shard.buffers()))

    def changed(self):
        return self._shard.changed()


def _check_count(files):
    if len(files) > MAX_FILES:
        raise ValueError("a checkpoint has at most %d files, and these are %d: put them into one, as an archive" % (MAX_FILES, len(files)))


def _check_name(name):
    parts = name.split("/")
    if name == MANIFEST or any(p in ("", ".", "..") or len(p.encode("utf-8")) > 255 or re.search("[:\0\n]", p) for p in parts):
        raise ValueError("%r cannot name a file of a checkpoint" % name)


def _blob_path(blobs, name):
    return posixpath.join(blobs, name[:2], name)


def _blobs_of(files):
    return {(f["size"], f["blob"][:64]): f["blob"] for f in files if f.get("blob")}


def _move(fs, source, destination):
    """Give a file its name. What has that name already is of an earlier try of the same save, and gives way."""
    for _ in range(3):
        try:
            fs.rename(source, destination, "OVERWRITE")
            return
        except FileNotFoundError:
            # There is no such directory yet, or the answer to a rename that was done got lost.
            if not fs.exists(source) and fs.exists(destination):
                return
            fs.mkdirs(posixpath.dirname(destination))
    fs.rename(source, destination, "OVERWRITE")


def _blobs_before(trial):
    """The shards of the checkpoint that the trial goes on from. The controller says whether they may be used."""
    if not trial.blobs or not trial.committed:
        return {}
    try:
        return _blobs_of(_manifest(trial.fs, _plain_path(trial.committed[-1]["uri"]))["files"])
    except (OSError, ValueError, KeyError):
        return {}  # then they are written anew


def _search(fs, blobs, sha, size):
    """A shard of another trial with these bytes, as of a backbone that many trials begin with."""
    try:
        found = [s["pathSuffix"] for s in fs.list(posixpath.join(blobs, sha[:2])) if s["length"] == size and s["pathSuffix"].startswith(sha + "-")]
    except (OSError, ValueError):
        return None
    return min(found, default=None)


# -- torch.distributed.checkpoint

def dcp_path(step=None):
    """A URL for fsspec: of the directory in which a checkpoint of this step is to be written, until commit_dir(step); or
    without a step of the newest checkpoint, None if there is none. A local path where no trial runs."""
    if step is None:
        return _url(_directory_of(None))
    return _url(posixpath.join(_run.current().checkpoints, "step-%d.tmp" % _run.whole_number(step)))


def _url(directory):
    if directory is None or not hasattr(_run.current().fs, "addresses"):
        return directory
    try:
        from hops import _fsspec
    except ImportError as e:
        raise ImportError("torch.distributed.checkpoint writes into the cluster through fsspec, which is not installed here: %s" % e) from None
    _fsspec.register()
    return "hops://" + directory


def dcp_writer(step, **options):
    """A storage_writer for torch.distributed.checkpoint.save(), the same on each rank; options are those of FsspecWriter. When it
    has returned on all ranks, commit_dir(step) commits it."""
    from torch.distributed.checkpoint import FsspecWriter
    # The datanodes have what close() has written: there is no file of this machine to synchronise.
    return FsspecWriter(dcp_path(step), **dict({"sync_files": False}, **options))


def dcp_reader(step=None, **options):
    """A storage_reader for torch.distributed.checkpoint.load() from the newest checkpoint, that of a step, or one in a directory. It is
    called on all ranks; of a checkpoint that is newer than the attempt only the chief knows, and tells the directory."""
    directory = _same_everywhere(step)
    from torch.distributed.checkpoint import FsspecReader
    return FsspecReader(_url(directory), **options)


def _same_everywhere(step):
    """The directory of a checkpoint that all ranks read. CheckpointError: the other ranks would read another one."""
    trial, directory = _run.current(), _directory_of(step)
    if directory is None:
        raise CheckpointError("trial %s has no checkpoint yet: ask hops.checkpoint.latest() first" % trial.id)
    if step is None and trial.gang and posixpath.dirname(directory) == trial.checkpoints:
        raise CheckpointError("%s is newer than this attempt, and the other ranks would read an older one: on all ranks, name "
                              "dist.context().broadcast_object(checkpoint.latest())[1]" % directory)
    return directory


def commit_dir(step, metric=None):
    """Commit what was written into dcp_path(step) by other means than save(): all of it is read once, for its checksums. Returns
    the directory. When all ranks have written, as when torch.distributed.checkpoint.save() has returned, rank 0 calls it; in other ranks
    it does nothing and returns None."""
    state = _state()
    trial, step = state.trial, _run.whole_number(step)
    _settle(state)
    if state.last is not None and step <= state.last:
        raise ValueError("a checkpoint of step %d was saved after one of step %d: steps must rise" % (step, state.last))
    wished = trial.saving()
    if trial.rank:
        state.last = step
        return None
    try:
        plan = _Plan(state, step, _run.number(metric) if metric is not None else None)
        plan.format = "dcp"
        temporary = plan._final() + ".tmp"
        names = sorted(_names_below(trial.fs, temporary, ""))
        if not names:
            raise CheckpointError("there is no file in %s: nothing was written for step %d" % (temporary, step))

        _check_count(names)

        def one(found):
            name, size = found
            _check_name(name)
            crc, at = 0, 0
            while at < size:
                data = trial.fs.read(posixpath.join(temporary, name), at, min(RANGE, size - at))
                if not data:
                    raise CheckpointError("%s in %s got shorter while it was read" % (name, temporary))
                crc, at = zlib.crc32(data, crc), at + len(data)
            return {"name": name, "size": size, "crc32": crc}

        files = _stream.parallel(one, names, WORKERS)
        final = plan._expose(temporary, files)
        plan.commit(final, files)
    except BaseException:
        trial.saving(wanted=wished)
        raise
    state.last, state.fresh = step, False
    return final


def _names_below(fs, directory, prefix):
    try:
        entries = fs.list(directory)
    except FileNotFoundError:
        return
    for e in entries:
        if e["type"] == "DIRECTORY":
            yield from _names_below(fs, posixpath.join(directory, e["pathSuffix"]), prefix + e["pathSuffix"] + "/")
        elif prefix + e["pathSuffix"] != MANIFEST:
            yield prefix + e["pathSuffix"], e["length"]


# -- formats

def _choose(obj):
    """(format, tree) for an object. Of other formats than tensors the tree is None."""
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return "bytes", None
    if isinstance(obj, dict) and obj and all(isinstance(k, str) and isinstance(v, (bytes, bytearray)) for k, v in obj.items()):
        return "files", None
    if _is_keras(obj):
        return "keras", None
    try:
        tree = _tensors.plain(obj)
        if tree[1]:
            return "tensors", tree
    except _tensors.Unsupported:
        if _has(obj, _tensors.is_torch):
            return "torch", None
        if _arrays(obj):
            return "npz", None
    if callable(getattr(obj, "state_dict", None)):
        obj = obj.state_dict()
    try:
        if json.loads(json.dumps(obj)) == obj:
            return "json", None
    except (TypeError, ValueError, RecursionError):
        pass
    return "pickle", None


def _stated(obj):
    """The object with the state_dict() of what has one in its place."""
    if callable(getattr(obj, "state_dict", None)):
        return obj.state_dict()
    if type(obj) is dict:
        return {k: _stated(v) for k, v in obj.items()}
    if type(obj) in (tuple, type([])):
        return type(obj)(_stated(v) for v in obj)
    return obj


def _in_shares(obj, depth=0):
    """Whether there are tensors of torch in it of which each rank of a gang has a part, or what has such ones. The others would not be asked for theirs."""
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is None or depth > 20:
        return False
    if isinstance(obj, tensor.DTensor):
        return True
    if isinstance(obj, dict):
        return any(_in_shares(v, depth + 1) for v in obj.values())
    if type(obj) in (tuple, type([])):
        return any(_in_shares(v, depth + 1) for v in obj)
    if callable(getattr(obj, "state_dict", None)):
        held = obj.parameters() if callable(getattr(obj, "parameters", None)) else [p for g in getattr(obj, "param_groups", ()) for p in g["params"]]
        return any(isinstance(p, tensor.DTensor) for p in held)
    return False


def _has(obj, test, depth=0):
    obj = _stated(obj) if depth == 0 else obj
    if test(obj):
        return True
    values = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, (tuple, set, type([]))) else ()
    return depth < 20 and any(_has(v, test, depth + 1) for v in values)


def _arrays(obj):
    """Whether numpy's own file can have it without pickles."""
    values = [*obj.values()] if isinstance(obj, dict) and all(isinstance(k, str) for k in obj) else [obj]
    return bool(values) and all(_tensors.is_numpy(v) and not v.dtype.hasobject for v in values)


def _is_keras(obj):
    return any(isinstance(obj, m.Model) for m in (sys.modules.get("keras"), sys.modules.get("tf_keras")) if hasattr(m, "Model"))


def _named(obj):
    obj = _stated(obj)
    if not isinstance(obj, dict) or not obj or not all(isinstance(k, str) and _tensors.is_tensor(v) for k, v in obj.items()):
        raise TypeError("format safetensors takes a dict of names to tensors of torch or numpy, not a %s" % type(obj).__name__)
    return [(k, _tensors.Tensor(v)) for k, v in obj.items()]


def _torch_source(obj, plan):
    import torch
    state = _stated(obj)
    return [("state.pt", _stream.Written(lambda out: torch.save(state, out)))]


def _npz_source(obj, plan):
    import numpy
    arrays = obj if isinstance(obj, dict) else {"": obj}
    if not _arrays(obj):
        raise TypeError("format npz takes arrays of numpy without objects in them, or a dict of names to such")
    plan.more["single"] = not isinstance(obj, dict)
    return [("state.npz", _stream.Written(lambda out: numpy.savez(out, **{"a" + k: v for k, v in arrays.items()})))]


def _keras_source(obj, plan):
    if not _is_keras(obj):
        raise TypeError("format keras takes a Keras model, not a %s" % type(obj).__name__)
    local = os.path.join(plan._directory(), "model.keras")
    obj.save(local)
    plan.more["module"] = next(name for name in ("tf_keras", "keras") if isinstance(obj, getattr(sys.modules.get(name), "Model", ())))
    return [("model.keras", _stream.LocalFile(local))]


def _json_source(obj, plan):
    return [("state.json", _stream.Buffers([json.dumps(_stated(obj)).encode("ascii")]))]


def _bytes_source(obj, plan):
    return [("state.bin", _stream.Buffers([obj]))]


def _files_source(obj, plan):
    for name in obj:
        _check_name(name)
    return [(k, _stream.Buffers([v])) for k, v in sorted(obj.items())]


def _pickle_source(obj, plan):
    state = _stated(obj)
    return [("state.pkl", _stream.Written(lambda out: pickle.dump(state, out)))]


_SOURCES = {"torch": _torch_source, "npz": _npz_source, "keras": _keras_source, "json": _json_source, "bytes": _bytes_source,
            "files": _files_source, "pickle": _pickle_source}


# -- finding and loading

def checkpoints():
    """The checkpoints of this trial that are kept, in the order of their saves: [{"step", "directory", "metric"}]. metric may be None."""
    state = _state()
    _settle(state)
    out = []
    for c in state.trial.committed:
        metric = c.get("metric")
        out.append({"step": c["step"], "directory": _plain_path(c["uri"]), "metric": float(metric) if metric is not None else None})
    return out


def latest():
    """(step, directory) of the newest checkpoint, which a trial at its beginning goes on from. None: there is none."""
    found = checkpoints()
    return (found[-1]["step"], found[-1]["directory"]) if found else None


def best(direction=None):
    """(step, directory) of the checkpoint with the best metric. direction is "max" or "min", by default that of the search."""
    from hops import _trial
    direction = direction or (_trial.setting("direction") or "max")
    if direction not in ("max", "min"):
        raise ValueError('direction is %r, and it is "max" or "min"' % (direction,))
    found = [c for c in checkpoints() if c["metric"] is not None and c["metric"] == c["metric"]]
    if not found:
        return None
    c = (max if direction == "max" else min)(reversed(found), key=lambda c: c["metric"])
    return c["step"], c["directory"]


def load(step=None, map_location=None):
    """(step, object) saved last, or at a step; None at the beginning of a trial. Tensors come back on the CPU, or where
    map_location says. What was saved from a local path comes back as the path of a copy. Every file is checked against the manifest.

    step may be the directory of a checkpoint instead, of whatever trial."""
    directory = _directory_of(step)
    if directory is None:
        return None
    fs = _run.current().fs
    manifest = _manifest(fs, directory)
    form = manifest.get("format") or _format_of_names(manifest)
    reader = _Reader(fs, directory, manifest)
    if form not in _READERS:
        raise CheckpointError("checkpoint %s is of format %r, which this version of hops does not know: load it with the version that wrote it" % (directory, form))
    return manifest["step"], _READERS[form](reader, map_location)


def restore(model, optimizer=None, step=None, map_location=None):
    """Load a checkpoint into a model, and an optimizer, and return its step; None at the beginning of a trial. The checkpoint is
    the model's state_dict(), a dict with it under "model" (and the optimizer's under "optimizer"), or a Keras model.
    CheckpointMismatch: it is of another shape."""
    found = load(step, map_location)
    if found is None:
        return None
    step, saved = found
    state, other = saved, None
    if isinstance(saved, dict):
        for key in ("model", "model_state_dict", "state_dict"):
            if isinstance(saved.get(key), dict):
                state, other = saved[key], saved.get("optimizer", saved.get("optimizer_state_dict"))
                break
    what = type(model).__name__
    try:
        if hasattr(model, "load_state_dict") and not hasattr(state, "get_weights"):  # with torch below it a Keras model has both
            model.load_state_dict(state)
        else:
            model.set_weights(state.get_weights() if hasattr(state, "get_weights") else state)
        if optimizer is not None:
            what = type(optimizer).__name__
            if other is None:
                raise KeyError("the checkpoint has no optimizer: save({\"model\": model, \"optimizer\": optimizer}, step)")
            optimizer.load_state_dict(other)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as e:
        text = " ".join(str(e.args[0] if e.args else e).split())
        text = text if len(text) <= 400 else text[:400] + "…"
        raise CheckpointMismatch("checkpoint of step %d of trial %s does not fit the %s: %s (build the model with the parameters with which it was saved, or begin "
                                 "anew without it)" % (step, _run.current().id, what, text)) from e
    return step


def _directory_of(step):
    if isinstance(step, str):
        return _plain_path(step)
    found = checkpoints()
    if step is None:
        return found[-1]["directory"] if found else None
    for c in reversed(found):
        if c["step"] == step:
            return c["directory"]
    trial = _run.current()
    raise CheckpointError("trial %s has no checkpoint of step %s; there are those of %s%s" % (
        trial.id, step, ", ".join(str(c["step"]) for c in found) or "none",
        " (rank %d does not know those that rank 0 has saved since: have it broadcast the directory)" % trial.rank if trial.rank else ""))


def _plain_path(uri):
    return "/" + uri.split("://", 1)[1].split("/", 1)[1] if "://" in uri else uri


def _manifest(fs, directory):
    try:
        manifest = json.loads(fs.read(posixpath.join(directory, MANIFEST)).decode("utf-8"))
        files = manifest["files"]
        if manifest.get("version", 1) not in (1, 2, 3):
            raise ValueError("it is of version %r, which this version of hops does not know" % (manifest["version"],))
        if not isinstance(manifest["step"], int) or not files or not all(_is_file(f) for f in files):
            raise ValueError("it has no files")
    except FileNotFoundError:
        raise CheckpointError("%s is no checkpoint: %s is not there" % (directory, MANIFEST)) from None
    except (ValueError, KeyError, TypeError) as e:
        raise CheckpointError("checkpoint %s: %s cannot be read: %s" % (directory, MANIFEST, e)) from None
    return manifest


_BLOB = re.compile("[0-9a-f]{64}-[0-9]{4,10}-[0-9]{1,9}--?[0-9]{1,19}")


def _is_file(f):
    """Whether an entry of a manifest names a file and how it is checked."""
    return isinstance(f["name"], str) and isinstance(f["size"], int) and f["size"] >= 0 and (
        isinstance(f["blob"], str) and _BLOB.fullmatch(f["blob"]) is not None if f.get("blob") else isinstance(f["crc32"], int))


_NAMES = {"state.bin": "bytes", "state.json": "json", "state.pkl": "pickle", "state.pt": "torch"}


def _format_of_names(manifest):
    """The format of a checkpoint from before manifests said it."""
    names = [f["name"] for f in manifest["files"]]
    return _NAMES.get(names[0], "files") if len(names) == 1 else "files"


class _Reader:
    """Reads the files of a checkpoint, and checks them."""

    def __init__(self, fs, directory, manifest):
        self.fs, self.directory, self.manifest = fs, directory, manifest
        self.files = {f["name"]: f for f in manifest["files"]}

    def _at(self, f):
        blob = f.get("blob")
        if not blob:
            return posixpath.join(self.directory, f["name"])
        return _blob_path(posixpath.normpath(posixpath.join(self.directory, self.manifest["blobs"])), blob)

    def ranges(self, name):
        """The bytes of a file, in order; what is wrong with it shows at the end at the latest."""
        f = self.files.get(name)
        if f is None:
            raise CheckpointError("checkpoint %s has no file %s" % (self.directory, name))
        done, crc, digest = 0, 0, hashlib.sha256() if f.get("blob") else None
        while done < f["size"]:
            try:
                data = self.fs.read(self._at(f), done, min(RANGE, f["size"] - done))
            except FileNotFoundError:
                raise self._bad(f, "is not there") from None
            if not data:
                break
            if digest:
                digest.update(data)
            else:
                crc = zlib.crc32(data, crc)
            done += len(data)
            yield data
        if done != f["size"]:
            raise self._bad(f, "has %d bytes, and %d were written" % (done, f["size"]))
        if digest and digest.hexdigest() != f["blob"][:64]:
            raise self._bad(f, "is not what was written (SHA-256 %s, and %s was written)" % (digest.hexdigest(), f["blob"][:64]))
        if not digest and crc != f["crc32"]:
            raise self._bad(f, "is not what was written (CRC-32 %08x, and %08x was written)" % (crc, f["crc32"]))

    def _bad(self, f, why):
        return CheckpointError("checkpoint %s of trial %s: %s %s: load an older one (hops.checkpoint.list()), or begin anew" % (
            self.directory, self.manifest.get("trial"), f["name"], why))

    def into(self, name):
        """A file in memory that may be changed."""
        size = self.files[name]["size"] if name in self.files else 0
        try:
            out, at = bytearray(size), 0
        except (MemoryError, OverflowError):
            raise self._bad(self.files[name], "has %d bytes by the manifest, and there is no such memory here" % size) from None
        for data in self.ranges(name):
            out[at:at + len(data)] = data
            at += len(data)
        return out

    def whole(self, name):
        return b"".join(self.ranges(name))

    def local(self, directory, name):
        path = os.path.join(directory, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.writelines(self.ranges(name))
        return path


def _read_tensors(reader, map_location):
    tree = json.loads(reader.whole("tree.json").decode("ascii"))
    likes = _likes(tree)
    names = sorted(n for n in reader.files if n.endswith(".safetensors"))

    def one(name):
        return _tensors.read_shard(reader.into(name), lambda n: likes[n], map_location)

    found = {}
    for shard in _stream.parallel(one, names, WORKERS):
        found.update(shard)
    try:
        return _tensors.object_of(tree, lambda n, like: found[str(n)])
    except KeyError as e:
        raise CheckpointError("checkpoint %s: tensor %s is in none of its shards" % (reader.directory, e)) from None


def _likes(tree):
    out = {}

    def walk(v):
        if isinstance(v, dict):
            if v.get("$") == "tensor":
                out[str(v["n"])] = v["like"]
            for x in v.values():
                walk(x)
        elif isinstance(v, (tuple, type([]))):
            for x in v:
                walk(x)

    walk(tree)
    return out


def _read_safetensors(reader, map_location):
    data = reader.into("model.safetensors")
    length = int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:8 + length]).decode("utf-8"))
    like = "numpy" if (header.get("__metadata__") or {}).get("format") == "np" else "torch"
    return _tensors.read_shard(data, like, map_location)


def _read_torch(reader, map_location):
    import torch
    # Written by this trial's own function, and read inside its process only.
    return torch.load(io.BytesIO(reader.whole("state.pt")), map_location=map_location, weights_only=False)


def _read_npz(reader, map_location):
    import numpy
    with numpy.load(io.BytesIO(reader.whole("state.npz")), allow_pickle=False) as arrays:
        out = {k[1:]: arrays[k] for k in arrays.files}
    return out[""] if reader.manifest.get("single") else out


def _read_keras(reader, map_location):
    import importlib
    module = importlib.import_module(reader.manifest.get("module", "keras"))
    directory = _scratch()
    try:
        return module.models.load_model(reader.local(directory, "model.keras"))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _read_dcp(reader, map_location):
    raise CheckpointError("checkpoint %s was written by torch.distributed.checkpoint: load it by torch.distributed.checkpoint.load(state, "
                          "storage_reader=hops.checkpoint.dcp_reader())" % reader.directory)


def _read_directory(reader, map_location):
    directory = _scratch()
    for name in reader.files:
        _check_name(name)
        reader.local(directory, name)
    return directory


_READERS = {
    "tensors": _read_tensors, "safetensors": _read_safetensors, "torch": _read_torch, "npz": _read_npz, "keras": _read_keras, "directory": _read_directory, "dcp": _read_dcp,
    "json": lambda r, _: json.loads(r.whole("state.json").decode("utf-8")), "bytes": lambda r, _: r.whole("state.bin"),
    "pickle": lambda r, _: pickle.loads(r.whole("state.pkl")),  # as for torch
    "files": lambda r, _: {name: r.whole(name) for name in r.files},
}

list = checkpoints  # noqa: A001 - the name that people look for; in this module it is not the type
