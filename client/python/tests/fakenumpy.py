"""As much of numpy as checkpoints use, on bytes: for tests that run where numpy is not installed."""


class dtype:
    def __init__(self, text):
        self.str, self.itemsize, self.hasobject = text, int(text[2:]), False

    def newbyteorder(self, order):
        return dtype((order if self.itemsize > 1 else "|") + self.str[1:])

    def __eq__(self, other):
        return self.str == getattr(other, "str", other)


class generic:
    pass


class ndarray:
    def __init__(self, data, text="<f4", shape=None):
        self.data, self.dtype = data, dtype(text)
        self.shape = tuple(shape if shape is not None else (len(data) // self.dtype.itemsize,))

    def reshape(self, shape):
        return ndarray(self.data, self.dtype.str, shape)

    def __eq__(self, other):
        return bytes(self.data) == bytes(other.data) and self.dtype == other.dtype and self.shape == other.shape


def ascontiguousarray(a, dtype=None):
    return a.data


def frombuffer(data, dtype, count, offset):
    size = int(dtype[2:])
    return ndarray(bytearray(data[offset:offset + count * size]), dtype)


def empty(shape, kind):
    size = kind.itemsize
    for n in shape:
        size *= n
    return ndarray(bytearray(size), kind.str, shape)


def copyto(to, source):
    to.data[:] = source.data
