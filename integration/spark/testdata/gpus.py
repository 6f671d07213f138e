"""Which GPUs the executors were granted."""
import os
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("gpus").getOrCreate()
sc = spark.sparkContext


def gpu(_):
    time.sleep(2)
    addresses = TaskContext.get().resources()["gpu"].addresses
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return [visible[int(a)] for a in addresses]


while sc._jsc.sc().getExecutorMemoryStatus().size() < 3:
    time.sleep(0.2)
seen = sc.parallelize(range(4), 4).flatMap(gpu).collect()
print("tasks", len(seen), "devices", len(set(seen)))
spark.stop()
