# A run of the program itself, files, models and TensorBoard.
import os
import tempfile

from hops import devices, experiment, hdfs, model, tensorboard

os.environ["HOPS_PROJECT"] = "deck"
os.chdir(tempfile.mkdtemp())
directory = experiment.begin(name="driver", versioned_resources=[__file__], description="by hand")
try:
    experiment.begin()
except RuntimeError as e:
    print("ONE", e)
tensorboard.scalar("loss", 0.5, 1)
print("LOGDIR", tensorboard.logdir() == directory, directory.startswith("/Projects/deck/Experiments/local_"))
with open("weights.bin", "wb") as f:
    f.write(b"abc" * 1000)
hdfs.copy_to_hdfs("weights.bin", "Resources")
exported = model.export("weights.bin", "digits", metrics={"accuracy": 0.5})
model.export("Resources", "digits", metrics={"accuracy": 0.75}, description="from the cluster")
print("MODEL", exported["version"], model.get_best_model("digits", "accuracy", model.Metric.MAX)["version"], model.get_model("digits", 1)["experiment"] == os.environ["ML_ID"])
local = model.download_model("digits")
print("FILES", sorted(os.listdir(local)))
for call in (lambda: model.get_model("digits", 9), lambda: model.download_model("digits"), lambda: model.export("weights.bin", "digits", 1)):
    try:
        call()
    except (model.ModelNotFound, model.ModelArchiveExists, FileExistsError) as e:
        print("REFUSED", type(e).__name__)
print("END", experiment.end(0.25) == directory)
names = sorted(os.path.basename(p) for p in hdfs.ls(directory, recursive=True))
print("LEFT", [n for n in names if not n.startswith("events")], any(n.startswith("events") for n in names))

hdfs.mkdir("a/b")
hdfs.dump("text", "a/b/one.txt")
hdfs.cp("a/b/one.txt", "a/b/two.txt")
hdfs.chmod("a/b/two.txt", "600")
with hdfs.open_file("a/b/three.txt", flags="w") as f:
    f.write("3")
print("HDFS", hdfs.project_path(), hdfs.ls("a/b") == ["/Projects/deck/a/b/%s.txt" % n for n in ("one", "three", "two")], hdfs.glob("a/b/t*"), hdfs.access("a/b/one.txt", os.R_OK),
      hdfs.stat("a/b/two.txt")["permission"], hdfs.open_file("a/b/three.txt").read(), hdfs.capacity() > 0, hdfs.project_id() > 0, hdfs.is_tls_enabled(), hdfs.get_webhdfs_port() > 0,
      hdfs.isdir("a/b"), hdfs.isfile("a/b"), hdfs.exists("a/c"), len(hdfs.lsl("a", recursive=True)))
hdfs.rename("a/b/two.txt", "a/b/four.txt")
with hdfs.publish() as p:
    p.rename("a/b/four.txt", "a/b/one.txt", overwrite=True)
    p.set_xattr("a/b/one.txt", "user.version", "7")
    p.delete("a/b/three.txt")
try:
    with hdfs.publish() as p:
        p.delete("a/b/one.txt")
        p.remove_xattr("a/b", "user.version")
except OSError as e:
    print("PUBLISH", hdfs.ls("a/b"), p.snapshot_path, e)
hdfs.rmr("a")
with open("helper.py", "w") as f:
    f.write("VALUE = 7\n")
hdfs.copy_to_hdfs("helper.py", "code")
hdfs.add_module("code/helper.py")
os.remove("helper.py")
import helper
print("MODULE", helper.VALUE, devices.get_num_gpus() >= 0)
tensorboard.visualize(directory)
