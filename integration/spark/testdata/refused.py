"""Executors that want a service of their nodes which is not there are refused, again and again; the driver gives up after a while."""
import threading

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("refused").getOrCreate()
sc = spark.sparkContext
sc.setLogLevel("ERROR")
threading.Timer(15, sc.cancelAllJobs).start()
try:
    sc.parallelize(range(10), 2).count()
    print("counted")
except Exception as e:
    print("no executor came:", "cancelled" in str(e))
spark.stop()
