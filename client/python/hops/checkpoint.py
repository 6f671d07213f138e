"""Checkpoints of a trial: made visible all at once, and known to the controller before save() returns.

save() writes into step-N.tmp/, adds MANIFEST.json with the size and CRC-32 (zlib) of every file, renames the directory to
step-N/ and tells the controller. A trial that is resumed finds the one it was resumed from with latest() or load().
"""
import io
import json
import os
import pickle
import posixpath
import zlib

from hops import _run


def save(obj, step, metric=None):
    """Save obj at a step (epoch). obj is bytes, a dict of file names to bytes, anything JSON carries, or else is pickled;
    objects with state_dict() are stored by torch.save. Returns the directory."""
    trial = _run.current()
    files = _encode(obj)
    fs, final = trial.fs, posixpath.join(trial.checkpoints, "step-%d" % step)
    temporary = final + ".tmp"
    manifest = {"version": 1, "trial": trial.id, "attempt": trial.attempt, "step": step, "files": []}
    fs.delete(temporary, recursive=True)
    for name, data in sorted(files.items()):
        fs.create(posixpath.join(temporary, name), data, overwrite=True)
        manifest["files"].append({"name": name, "size": len(data), "crc32": zlib.crc32(data)})
    text = json.dumps(manifest, sort_keys=True).encode()
    fs.create(posixpath.join(temporary, "MANIFEST.json"), text, overwrite=True)
    # What an earlier attempt left under this name was never acknowledged, or is the same step made again.
    if not fs.rename(temporary, final):
        fs.delete(final, recursive=True)
        if not fs.rename(temporary, final):
            raise OSError("checkpoint %s: cannot rename it from %s" % (final, temporary))
    trial.commit_checkpoint(step, final, manifest["files"], metric)
    return final


def requested():
    """Whether a checkpoint is wanted now: the container of this trial will be taken away soon. True until save() has saved
    one. A function that looks once an epoch, or more often, and saves, loses no more than what it did since."""
    return _run.current().checkpoint_requested()


def latest():
    """(step, directory) of the checkpoint that this trial goes on from, or None at its beginning."""
    trial = _run.current()
    return (trial.resume_step, trial.resume_from) if trial.resume_from else None


def load(directory=None):
    """(step, object) saved last, or None at the beginning of a trial. Every file is checked against the manifest."""
    if directory is None:
        found = latest()
        if found is None:
            return None
        directory = found[1]
    fs = _run.current().fs
    directory = _path(directory)
    manifest = json.loads(fs.read(posixpath.join(directory, "MANIFEST.json")).decode())
    files = {}
    for f in manifest["files"]:
        data = fs.read(posixpath.join(directory, f["name"]))
        if len(data) != f["size"] or zlib.crc32(data) != f["crc32"]:
            raise OSError("checkpoint %s: %s is not what was written" % (directory, f["name"]))
        files[f["name"]] = data
    return manifest["step"], _decode(files)


def _path(uri):
    return "/" + uri.split("://", 1)[1].split("/", 1)[1] if "://" in uri else uri


def _encode(obj):
    if isinstance(obj, (bytes, bytearray)):
        return {"state.bin": bytes(obj)}
    if isinstance(obj, dict) and obj and all(isinstance(k, str) and isinstance(v, (bytes, bytearray)) for k, v in obj.items()):
        for name in obj:
            if os.path.basename(name) != name or name in (".", "..", "MANIFEST.json"):
                raise ValueError("%r cannot name a file of a checkpoint" % name)
        return {k: bytes(v) for k, v in obj.items()}
    if hasattr(obj, "state_dict") or _has_tensors(obj):
        import torch
        out = io.BytesIO()
        torch.save(obj.state_dict() if hasattr(obj, "state_dict") else obj, out)
        return {"state.pt": out.getvalue()}
    try:
        text = json.dumps(obj)
        if json.loads(text) == obj:
            return {"state.json": text.encode()}
    except (TypeError, ValueError):
        pass
    return {"state.pkl": pickle.dumps(obj)}


def _has_tensors(obj):
    values = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, (list, tuple)) else ()
    return any(type(v).__module__.split(".")[0] == "torch" or _has_tensors(v) for v in values)


def _decode(files):
    if set(files) == {"state.bin"}:
        return files["state.bin"]
    if set(files) == {"state.json"}:
        return json.loads(files["state.json"].decode())
    if set(files) == {"state.pkl"}:
        return pickle.loads(files["state.pkl"])  # written by this trial's own function, and read inside its process only
    if set(files) == {"state.pt"}:
        import torch
        return torch.load(io.BytesIO(files["state.pt"]), weights_only=False)
    return files
