# Entries of Optuna's journal, from several writers at once: every reader sees the same in the same order. (Optuna itself is not needed for that.)
import threading

from hops import hdfs
from hops.optuna import JournalBackend

hdfs.mkdir("/Projects/deck/journal")


def write(worker):
    backend = JournalBackend("/Projects/deck/journal")
    backend.SNAPSHOT = 8
    for n in range(6):
        backend.append_logs([{"worker": worker, "n": n, "part": part} for part in (0, 1)])


threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
first, second = JournalBackend("/Projects/deck/journal").read_logs(0), JournalBackend("/Projects/deck/journal").read_logs(0)
print("JOURNAL", len(first), first == second, all([e["n"] for e in first if e["worker"] == w and e["part"] == 0] == list(range(6)) for w in range(4)),
      all(first[i]["part"] == 0 and first[i + 1]["worker"] == first[i]["worker"] for i in range(0, 48, 2)))
