"""An executor is killed with -9 by one of its tasks; the work is done all the same."""
import os
import signal
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("killed").getOrCreate()
sc = spark.sparkContext


def work(x):
    time.sleep(0.2)
    t = TaskContext.get()
    if t.partitionId() == 3 and t.attemptNumber() == 0:
        os.kill(int(os.environ["JVM_PID"]), signal.SIGKILL)
    return x


print("sum", sc.parallelize(range(1000), 8).mapPartitions(lambda part: [sum(work(x) for x in list(part)[:5])]).count())
spark.stop()
