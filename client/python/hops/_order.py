"""The order of a shuffled epoch: a permutation of 0 … n-1 that follows from a seed and needs no list of n, so that any position can be
looked up at once."""
import array
import hashlib
import struct
import sys

_ROUNDS = 6
LIMIT = 1 << 40


class Permutation:
    """p[i] for i in 0 … n-1: a Feistel network over the smallest power of two that holds n, walked until the value is below n
    (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002). The round functions are tables of SHAKE-256 of the seed. seed is
    an int or str. The same on every machine and in every version of Python."""

    def __init__(self, n, seed):
        if not 0 <= n <= LIMIT:
            raise ValueError("%d things cannot be shuffled: 0 to %d can" % (n, LIMIT))
        if not isinstance(seed, (int, str)):
            raise TypeError("the seed is %r, neither int nor str" % (seed,))
        self.n, self.seed = n, seed
        bits = max(2, (n - 1).bit_length())
        self._right = bits // 2
        left = bits - self._right
        self._mask = (1 << self._right) - 1
        self._tables = []
        for k in range(_ROUNDS):
            # Even rounds change the left half by a function of the right one, odd rounds the other way.
            size, out = (1 << self._right, left) if k % 2 == 0 else (1 << left, self._right)
            stream = hashlib.shake_256(struct.pack("<QB", n, k) + str(seed).encode("utf-8")).digest(4 * size)
            table = array.array("I", stream)
            if sys.byteorder == "big":
                table.byteswap()
            mask = (1 << out) - 1
            self._tables.append([x & mask for x in table])

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        a, b, c, d, e, f = self._tables
        shift, mask, n = self._right, self._mask, self.n
        while True:
            left, right = i >> shift, i & mask
            left ^= a[right]
            right ^= b[left]
            left ^= c[right]
            right ^= d[left]
            left ^= e[right]
            right ^= f[left]
            i = left << shift | right
            if i < n:
                return i
