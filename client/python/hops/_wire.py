"""Values on their way out of user code: JSON that every reader takes, whatever a function reported or returned.

JSON has no infinities, no NaN and no half of a surrogate pair; the executor protocol writes the numbers as the strings
"Infinity", "-Infinity" and "NaN". What has no JSON form at all becomes text. encode() does not fail on a value.
"""
import json
import math

# Deeper than this, and longer than this, a value is given as text.
MAX_DEPTH = 20
MAX_ITEMS = 10_000
MAX_TEXT = 1000


def encode(document):
    """The UTF-8 bytes of a document in JSON."""
    return json.dumps(plain(document), allow_nan=False).encode("utf-8")


def plain(value, depth=0):
    """value in what JSON has: None, bool, int, float, str, list, dict with str keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        value = float(value)  # a subclass may print itself in its own way
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int):
        value = int(value)
        return value if value.bit_length() <= 64 else plain(as_float(value))
    if depth < MAX_DEPTH and isinstance(value, (dict, list, tuple)) and len(value) <= MAX_ITEMS:
        if isinstance(value, dict):
            return {text(k) if isinstance(k, str) else described(k): plain(v, depth + 1) for k, v in value.items()}
        return [plain(v, depth + 1) for v in value]
    if not isinstance(value, (bytes, bytearray, dict, list, tuple)):
        try:  # numbers of numpy, torch and others
            return plain(float(value))
        except Exception:  # noqa: B902 - code of other people may raise anything
            pass
    return described(value)


def text(value):
    """A str that UTF-8 can carry: halves of surrogate pairs are replaced."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def as_float(value):
    """A number as float; what is too large for one is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def described(value):
    """Something that has no JSON form, as a short text."""
    try:
        said = str(value)
    except Exception:  # noqa: B902 - as above; also RecursionError
        said = "<%s>" % type(value).__name__
    return text(said if len(said) <= MAX_TEXT else said[:MAX_TEXT] + "…")
