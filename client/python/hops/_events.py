"""TensorBoard event files: TFRecord frames around hand-encoded Event messages (tensorflow/core/util/event.proto)."""
import socket
import struct
import time

from hops import _wire

_MASK = 0xFFFFFFFF


def _table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


_CRC = _table()


def crc32c(data, crc=0):
    """CRC-32C (Castagnoli) of data, continuing crc."""
    crc ^= _MASK
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _MASK


def _masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _MASK


def record(data):
    """One TFRecord: length u64 | masked CRC of length u32 | data | masked CRC of data u32, little-endian."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _float32(value):
    try:
        return struct.pack("<f", value)
    except OverflowError:  # finite, but beyond a float32
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _text(value):
    return _wire.text(str(value)).encode("utf-8")


def _bytes(field, data):
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _event(wall_time, step, payload):
    # Event: 1 wall_time double, 2 step int64, 3 file_version string, 5 summary
    return struct.pack("<Bd", 1 << 3 | 1, wall_time) + (_varint(2 << 3) + _varint(step) if step else b"") + payload


def header(wall_time=None):
    """The record that opens every event file."""
    return record(_event(time.time() if wall_time is None else wall_time, 0, _bytes(3, b"brain.Event:2")))


def scalar(tag, value, step, wall_time=None):
    """A record with one scalar. Summary.Value: 1 tag string, 2 simple_value float."""
    number = _bytes(1, _text(tag)) + struct.pack("<B", 2 << 3 | 5) + _float32(value)
    return record(_event(time.time() if wall_time is None else wall_time, step, _bytes(5, _bytes(1, number))))


def _value(v):
    # google.protobuf.Value: 2 number, 3 string, 4 bool
    if isinstance(v, bool):
        return _varint(4 << 3) + _varint(int(v))
    if isinstance(v, (int, float)):
        return struct.pack("<Bd", 2 << 3 | 1, v)
    return _bytes(3, _text(v))


def hparams(params, trial, wall_time=None):
    """The session start of the HParams plugin (tensorboard/plugins/hparams/plugin_data.proto): parameters of one trial."""
    entries = b"".join(_bytes(1, _bytes(1, _text(k)) + _bytes(2, _value(v))) for k, v in sorted(params.items()))
    # SessionStartInfo: 1 hparams map, 4 group_name, 5 start_time_secs
    now = time.time() if wall_time is None else wall_time
    start = entries + _bytes(4, str(trial).encode("utf-8")) + struct.pack("<Bd", 5 << 3 | 1, now)
    # HParamsPluginData: 1 version, 3 session_start_info; SummaryMetadata.PluginData: 1 plugin_name, 2 content
    plugin = _bytes(1, b"hparams") + _bytes(2, _varint(1 << 3) + _varint(0) + _bytes(3, start))
    # Summary.Value: 1 tag, 8 tensor (an empty float tensor: 1 dtype DT_FLOAT, 2 shape), 9 metadata (1 plugin_data)
    tensor = _varint(1 << 3) + _varint(1) + _bytes(2, _bytes(2, _varint(1 << 3) + _varint(0)))
    value = _bytes(1, b"_hparams_/session_start_info") + _bytes(8, tensor) + _bytes(9, _bytes(1, plugin))
    return record(_event(now, 0, _bytes(5, _bytes(1, value))))


def file_name(now=None):
    """A name that TensorBoard recognises."""
    return "events.out.tfevents.%010d.%s" % (time.time() if now is None else now, socket.gethostname())
