"""Dynamic allocation: executors come with work, go when there is none, and come back."""
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("dynamic").getOrCreate()
sc = spark.sparkContext


def executors():
    return sc._jsc.sc().getExecutorMemoryStatus().size() - 1


def until(what, ok):
    for _ in range(240):
        if ok():
            return
        time.sleep(0.5)
    raise SystemExit("in vain waited until " + what + ": %d executors" % executors())


def work():
    return sc.parallelize(range(8), 8).map(lambda x: (time.sleep(1), x)[1]).sum()


print("sum", work())
until("there is an executor", lambda: executors() > 0)
until("they are gone", lambda: executors() == 0)
print("idle without executors")
print("sum", work())
print("and back")
spark.stop()
