"""Writes Parquet into the cluster's filesystem, reads it back with a shuffle, and reads text that the suite has put there."""
import sys

from pyspark.sql import SparkSession

place = sys.argv[1]
spark = SparkSession.builder.appName("data").getOrCreate()
spark.range(200000).selectExpr("id", "id % 7 as week").repartition(6).write.mode("overwrite").parquet(place + "/numbers")
rows = spark.read.parquet(place + "/numbers").groupBy("week").count().orderBy("week").collect()
print("weeks", [(r["week"], r["count"]) for r in rows])
words = spark.sparkContext.textFile(place + "/words.txt").flatMap(str.split).map(lambda w: (w, 1)).reduceByKey(lambda a, b: a + b)
print("words", sorted(words.collect()))
spark.stop()
