"""Objects with tensors as a tree in JSON and shards of raw bytes: how checkpoints keep them.

A shard is a file in the format of safetensors (github.com/huggingface/safetensors, "Format"): eight bytes with the length of
the header, little endian; the header in JSON, {name: {"dtype", "shape", "data_offsets": [begin, end]}}; the bytes of
the tensors one after the other. Tensors of torch and of numpy are kept; neither library is imported unless an object
has its tensors. training/checkpoint/FORMAT.md tells the tree.
"""
import base64
import collections
import ctypes
import json
import pickle
import sys

# A shard ends after so many bytes, or where the object's next part begins if it has so many, and that share of the object: each shard costs a
# few requests and synchronisations, as much as two or three MiB do.
SHARD = 32 << 20
PART = 1 << 20
PARTS = 8
# Shards get larger rather than more than so many.
MAX_SHARDS = 400
# What is pickled inside a tree, at most.
MAX_PICKLE = 1 << 20
MAX_HEADER = 64 << 20
# Tensors of this machine's memory up to this size are copied by one thread, 10 GB a second: torch's pool waits for its slowest thread, which on
# a busy machine took four times as long.
ALONE = 64 << 20
ALIGN = 8

# Names of safetensors: (attribute of torch, dtype of numpy, bytes). None: it has none.
DTYPES = {
    "F64": ("float64", "<f8", 8), "F32": ("float32", "<f4", 4), "F16": ("float16", "<f2", 2), "BF16": ("bfloat16", None, 2),
    "F8_E4M3": ("float8_e4m3fn", None, 1), "F8_E5M2": ("float8_e5m2", None, 1), "I64": ("int64", "<i8", 8), "I32": ("int32", "<i4", 4),
    "I16": ("int16", "<i2", 2), "I8": ("int8", "|i1", 1), "U64": ("uint64", "<u8", 8), "U32": ("uint32", "<u4", 4), "U16": ("uint16", "<u2", 2),
    "U8": ("uint8", "|u1", 1), "BOOL": ("bool", "|b1", 1), "C64": ("complex64", "<c8", 8),
}


class Unsupported(TypeError):
    """A thing that has no place in a tree, or a tensor that safetensors has no name for."""


def is_torch(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def is_tensor(value):
    return is_torch(value) or is_numpy(value)


class Tensor:
    """A tensor as it is to be written: dtype (name of safetensors), shape, and its bytes on demand."""

    def __init__(self, value):
        self.value = value
        if is_torch(value):
            import torch
            self.like = "torch"
            plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and not value.is_quantized
            if not plain or value.device.type == "meta" or value.is_conj() or value.is_neg():
                raise Unsupported("a tensor of type %s, layout %s, device %s" % (type(value).__name__, value.layout, value.device))
            self.dtype = _torch_name(value.dtype)
            self.shape = list(value.shape)
            self._version = getattr(value, "_version", None) if not _inference(value) else None
        else:
            import numpy
            self.like, self._version = "numpy", None
            if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
                raise Unsupported("an array of type %s" % type(value).__name__)
            self.dtype = _numpy_name(value.dtype)
            self.shape = list(value.shape)
        if self.dtype is None:
            raise Unsupported("a tensor of dtype %s" % value.dtype)
        self.size = DTYPES[self.dtype][2]
        for n in self.shape:
            self.size *= n

    @property
    def watched(self):
        """Whether changed() would know: torch counts the changes of a tensor, numpy does not."""
        return self._version is not None

    def changed(self):
        """Whether the tensor was changed since this was made."""
        return self.watched and self.value._version != self._version

    def same(self):
        """What two tensors share that are one: it is written once."""
        v = self.value
        if self.like == "torch":
            return ("torch", str(v.device), v.data_ptr(), self.dtype, tuple(self.shape), tuple(v.stride())) if self.size else ("torch", id(v))
        return "numpy", id(v)

    def copy(self, into=None):
        """The same tensor in memory that nobody else changes: in that of an earlier copy, if it fits."""
        if self.like == "torch":
            import torch
            fits = into is not None and into.like == "torch" and into.dtype == self.dtype and into.shape == self.shape
            there = into.value if fits else torch.empty(self.shape, dtype=self.value.dtype, device="cpu", pin_memory=self.value.is_cuda)
            if self.size <= ALONE and self.value.device.type == "cpu" and self.value.is_contiguous():
                ctypes.memmove(there.data_ptr(), self.value.data_ptr(), self.size)
            else:
                there.copy_(self.value.detach(), non_blocking=self.value.is_cuda)
            return Tensor(there)
        import numpy
        if isinstance(self.value, numpy.generic):
            return self
        fits = into is not None and into.like == "numpy" and into.value.dtype == self.value.dtype and into.shape == self.shape
        there = into.value if fits else numpy.empty(self.shape, self.value.dtype)
        numpy.copyto(there, self.value)
        return Tensor(there)

    def bytes(self):
        """A buffer with the tensor's bytes, in rows, little endian. It lasts as long as what is returned."""
        if self.size == 0:
            return b""
        if self.like == "torch":
            flat = self.value.detach().cpu().contiguous()
            buffer = (ctypes.c_char * self.size).from_address(flat.data_ptr())
            buffer.tensor = flat  # the memory is its
            return buffer
        import numpy
        return memoryview(numpy.ascontiguousarray(self.value, dtype=DTYPES[self.dtype][1])).cast("B")


def _inference(value):
    """Tensors made in inference mode have no count of their changes."""
    return callable(getattr(value, "is_inference", None)) and value.is_inference()


def wait_for_copies(tensors):
    """Copies from devices are under way until then."""
    if any(t.like == "torch" and t.value.is_cuda for t in tensors):
        import torch
        torch.cuda.synchronize()


def _torch_name(dtype):
    name = str(dtype).rpartition(".")[2]
    return next((k for k, v in DTYPES.items() if v[0] == name), None)


def _numpy_name(dtype):
    text = dtype.newbyteorder("<").str
    return next((k for k, v in DTYPES.items() if v[1] == text), None)


# -- the tree

def plain(tree):
    """(tree in what JSON has, tensors) of an object. Unsupported: it does not fit."""
    tensors, places = [], {}

    def walk(v):
        kind = type(v)
        if v is None or kind in (bool, int, str):
            return v
        if kind is float:
            return v if v - v == 0 else {"$": "float", "value": "NaN" if v != v else "Infinity" if v > 0 else "-Infinity"}
        if is_tensor(v):
            try:
                t = Tensor(v)
            except Unsupported:
                if is_torch(v):
                    raise
                return pickled(v)  # text, times, structures of numpy
            same = t.same()
            if same not in places:
                places[same] = len(tensors)
                tensors.append(t)
            out = {"$": "tensor", "n": places[same], "like": t.like}
            if t.like == "torch" and v.requires_grad:
                out["grad"] = True
            if t.like == "numpy" and kind is not sys.modules["numpy"].ndarray:
                out["scalar"] = True
            return out
        if kind is list:
            return [walk(x) for x in v]
        if kind is tuple:
            return {"$": "tuple", "items": [walk(x) for x in v]}
        if kind is dict and all(type(k) is str for k in v) and "$" not in v:
            return {k: walk(x) for k, x in v.items()}
        if kind in (dict, collections.OrderedDict):
            out = {"$": "dict", "items": [[key(k), walk(x)] for k, x in v.items()]}
            if kind is not dict:
                out["ordered"] = True
                more = dict(vars(v))
                if set(more) - {"_metadata"}:
                    raise Unsupported("an OrderedDict with attributes of its own")
                if more:  # versions of the modules, which load_state_dict() looks at
                    out["metadata"] = walk(more["_metadata"])
            return out
        if kind is bytes and len(v) <= MAX_PICKLE:
            return {"$": "bytes", "hex": v.hex()}
        return pickled(v)

    def key(k):
        if is_tensor(k):
            raise Unsupported("a tensor as a key")
        return walk(k)

    def pickled(v):
        # A small thing of somebody's class (the milestones of a schedule): it is unpickled by the trial's own process only.
        if callable(getattr(v, "state_dict", None)):
            return walk(v.state_dict())
        try:
            data = pickle.dumps(v)
        except Exception as e:  # noqa: B902 - code of other people may raise anything
            raise Unsupported("a %s, which cannot be pickled: %s" % (type(v).__name__, e)) from None
        if len(data) > MAX_PICKLE:
            raise Unsupported("a %s of %d bytes" % (type(v).__name__, len(data)))
        return {"$": "pickle", "data": base64.b64encode(data).decode("ascii")}

    try:
        return walk(tree), tensors
    except RecursionError:
        raise Unsupported("an object that is nested too deep, or in itself") from None


def object_of(tree, tensor):
    """The object of a tree. tensor(n, like) gives tensor number n."""
    if isinstance(tree, list):
        return [object_of(x, tensor) for x in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get("$")
    if kind is None:
        return {k: object_of(x, tensor) for k, x in tree.items()}
    if kind == "tensor":
        t = tensor(tree["n"], tree["like"])
        if tree.get("grad"):
            t.requires_grad_(True)
        return t[()] if tree.get("scalar") else t
    if kind == "float":
        return float(tree["value"])
    if kind == "tuple":
        return tuple(object_of(x, tensor) for x in tree["items"])
    if kind == "bytes":
        return bytes.fromhex(tree["hex"])
    if kind == "pickle":
        return pickle.loads(base64.b64decode(tree["data"]))
    if kind == "dict":
        out = (collections.OrderedDict if tree.get("ordered") else dict)((object_of(k, tensor), object_of(x, tensor)) for k, x in tree["items"])
        if "metadata" in tree:
            out._metadata = object_of(tree["metadata"], tensor)
        return out
    raise ValueError("a tree with %r in it: it was written by a newer version of hops" % (kind,))


def parts(tree):
    """For each tensor by its number, which part of the object it is in: a group ends where a part does, so that a backbone
    that does not change and a head that does are not in one file."""
    found = {}

    def walk(v, place):
        if isinstance(v, list):
            for i, x in enumerate(v):
                walk(x, place)
        elif isinstance(v, dict):
            if v.get("$") == "tensor":
                found.setdefault(v["n"], place)
            elif v.get("$") in ("dict", "tuple"):
                for x in v["items"]:
                    if v["$"] == "dict":
                        walk(x[1], place + ((str(x[0]).split(".")[0],) if len(place) < 2 else ()))
                    else:
                        walk(x, place)
            elif "$" not in v:
                for k, x in v.items():
                    walk(x, place + ((k.split(".")[0],) if len(place) < 2 else ()))

    walk(tree, ())
    return found


def shards(tree, tensors):
    """Lists of the numbers of tensors, one a shard. The same object is divided in the same way each time."""
    whole = sum(t.size for t in tensors)
    limit, part = max(SHARD, whole // MAX_SHARDS), max(PART, whole // PARTS)
    where, out, size, last = parts(tree), [], 0, None
    for n, t in enumerate(tensors):
        if not out or size + t.size > limit and size or size >= part and where.get(n) != last:
            out.append([])
            size = 0
        out[-1].append(n)
        size += t.size
        last = where.get(n)
    return out


# -- safetensors

class Shard:
    """A file in the format of safetensors with some tensors, by their names."""

    def __init__(self, named, metadata=None):
        self._named, header, at = named, {}, 0
        if metadata:
            header["__metadata__"] = metadata
        for name, t in named:
            header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + t.size]}
            at += t.size
        text = json.dumps(header, separators=(",", ":")).encode("utf-8")
        text += b" " * (-len(text) % ALIGN)
        self._head = len(text).to_bytes(8, "little") + text
        self.size = len(self._head) + at

    @property
    def unwatched(self):
        """Whether there is a tensor of which changed() would not know."""
        return not all(t.watched for _, t in self._named)

    def changed(self):
        """Whether a tensor was changed since it was named."""
        return any(t.changed() for _, t in self._named)

    def buffers(self):
        """The file's bytes, in order. What is on a device comes from there now."""
        return [self._head] + [t.bytes() for _, t in self._named]


def read_shard(data, like, map_location=None):
    """{name: tensor} of a file's bytes (a bytearray, whose memory the tensors keep). like is "torch" or "numpy", or a function
    of the name that says so. ValueError: this is no such file."""
    if len(data) < 8:
        raise ValueError("%d bytes are no safetensors file" % len(data))
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER, len(data) - 8):
        raise ValueError("a header of %d bytes in a safetensors file of %d" % (length, len(data)))
    header = json.loads(bytes(data[8:8 + length]).decode("utf-8"))
    start, out = 8 + length, {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        torch_name, numpy_name, size = DTYPES[t["dtype"]]
        count = 1
        for n in t["shape"]:
            count *= n
        if not 0 <= begin <= end <= len(data) - start or end - begin != count * size:
            raise ValueError("tensor %r of a safetensors file lies at %d to %d of %d bytes" % (name, begin, end, len(data) - start))
        kind = like(name) if callable(like) else like
        if kind == "torch":
            out[name] = _torch_tensor(data, start + begin, count, size, getattr(_torch(), torch_name), t["shape"], map_location)
        else:
            out[name] = _numpy_array(data, start + begin, count, numpy_name, t["dtype"], t["shape"])
    return out


def _torch():
    try:
        import torch
    except ImportError as e:
        raise ImportError("the checkpoint has tensors of torch, and torch is not installed here: %s" % e) from None
    return torch


def _torch_tensor(data, offset, count, size, dtype, shape, map_location):
    torch = _torch()
    if count == 0:
        t = torch.empty(shape, dtype=dtype)
    else:
        if offset % size:  # memory of a tensor begins at a multiple of its element
            data, offset = bytearray(data[offset:offset + count * size]), 0
        t = torch.frombuffer(data, dtype=dtype, count=count, offset=offset).reshape(shape)
    if map_location is None:
        return t
    return t.to(map_location)


def _numpy_array(data, offset, count, dtype, name, shape):
    try:
        import numpy
    except ImportError as e:
        raise ImportError("the checkpoint has arrays of numpy, and numpy is not installed here: %s" % e) from None
    if dtype is None:
        raise ValueError("numpy has no dtype for %s: load it with torch" % name)
    return numpy.frombuffer(data, dtype=dtype, count=count, offset=offset).reshape(shape)
