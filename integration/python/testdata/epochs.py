"""Writes files, reads epochs of them, and goes on while servers end: a line of standard input says that one has."""
import sys

from hops import data, hdfs

FILES = 600


def content(i):
    return b"%d " % i * (i % 2000)


def main():
    fs = hdfs.get_fs()
    for i in range(FILES):
        fs.create("/epochs/%d/%04d.bin" % (i % 4, i), content(i))
    fs.create("/epochs/0/large.bin", content(1999) * 3000, overwrite=True)
    want = {"/epochs/%d/%04d.bin" % (i % 4, i): content(i) for i in range(FILES)}
    want["/epochs/0/large.bin"] = content(1999) * 3000
    d = data.Dataset("/epochs")
    assert len(d) == FILES + 1 and d.bytes == sum(map(len, want.values())), d
    whole = list(d.epoch(seed=1))
    assert dict(whole) == want and [n for n, _ in whole] != d.names()
    parts = [list(d.epoch(seed=1, rank=r, world=3)) for r in range(3)]
    assert [parts[i % 3][i // 3] for i in range(len(whole))] == whole
    fs.set_permission("/epochs/1/0001.bin", "000")
    kept = data.Dataset("/epochs", index=True)
    assert data.Dataset("/epochs", index=True).fingerprint() == kept.fingerprint() == d.fingerprint()

    # A server ends between what was read ahead and what is asked for next.
    with d.epoch(seed=2, threads=1, memory=1) as e:
        got = [next(e) for _ in range(100)]
        print("READ", flush=True)
        sys.stdin.readline()
        got += list(e)
        assert dict(got) == want and len(got) == len(want)
    state = None
    with d.epoch(seed=3) as e:
        got = [next(e) for _ in range(77)]
        state = e.state()
    print("READ", flush=True)
    sys.stdin.readline()
    got += list(d.epoch(seed=3).restore(state))
    assert dict(got) == want and len(got) == len(want)
    print("DONE", flush=True)


main()
