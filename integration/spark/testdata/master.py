"""The first attempt's master, which is the driver, kills itself with -9; the second does the work."""
import os
import signal
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("master").getOrCreate()
n = spark.sparkContext.parallelize(range(1000), 4).count()
attempt = os.environ["CONTAINER_ID"].split("_")[-2]
if attempt == "01":
    os.kill(int(os.environ["JVM_PID"]), signal.SIGKILL)
    time.sleep(60)
print("attempt %s counts %d" % (attempt, n))
spark.stop()
