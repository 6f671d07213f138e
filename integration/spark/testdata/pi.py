"""Pi by throwing darts, as Spark's own example does it."""
import random
import sys

from pyspark.sql import SparkSession

partitions = int(sys.argv[1]) if len(sys.argv) > 1 else 2
n = 100000 * partitions


def inside(_):
    x, y = random.random() * 2 - 1, random.random() * 2 - 1
    return 1 if x * x + y * y <= 1 else 0


spark = SparkSession.builder.appName("pi").getOrCreate()
count = spark.sparkContext.parallelize(range(n), partitions).map(inside).reduce(lambda a, b: a + b)
print("Pi is roughly %f" % (4.0 * count / n))
spark.stop()
