"""Where the package reads pickles: in processes of the user whose program wrote them, and nowhere else."""
import ast
import glob
import os
import unittest

import harness

# Whoever can write what these read can run code as their user: the artifact of the job (its SHA-256 is in the job), checkpoints and the feed of the user's own experiment.
OF_THE_USERS_OWN = {
    ("hops/_trial.py", "find", "cloudpickle.load"),
    ("hops/_wrapped.py", "value", "cloudpickle.load"),
    ("hops/_tensors.py", "object_of", "pickle.loads"),
    ("hops/checkpoint.py", "_READERS", "pickle.loads"),
    ("hops/checkpoint.py", "_read_torch", "torch.load"),
    ("tensorflowonspark/TFNode.py", "_next_part", "pickle.loads"),
}
# Of others: it makes data only.
RESTRICTED = {("tensorflowonspark/TFCluster.py", "_Results", "pickle.Unpickler")}
READERS = {"load", "loads", "Unpickler", "Unpickle", "read_pickle", "Shelf", "open"}
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "torch"}


def reads(path):
    """(place, call) of what reads a pickle in a file: by the names under which it has imported such a module."""
    with open(path) as f:
        tree = ast.parse(f.read())
    names = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update((a.asname or a.name, a.name) for a in node.names if a.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names.update((a.asname or a.name, "%s.%s" % (node.module, a.name)) for a in node.names)
    found = set()

    def look(node, place):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            place = node.name if place in (None, "__init__") or isinstance(node, ast.FunctionDef) else place
        elif isinstance(node, ast.Assign) and place is None:
            place = getattr(node.targets[0], "id", None)
        call = None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names and node.attr in READERS:
            call = "%s.%s" % (names[node.value.id], node.attr)
        elif isinstance(node, ast.Name) and "." in names.get(node.id, "") and names[node.id].rpartition(".")[2] in READERS:
            call = names[node.id]
        if call:
            found.add((place, call))
        for child in ast.iter_child_nodes(node):
            look(child, place)
    look(tree, None)
    return found


class Pickles(unittest.TestCase):
    def test_are_read_by_their_own_user_only(self):
        found = set()
        for package in ("hops", "maggy", "tensorflowonspark"):
            for path in glob.glob(os.path.join(harness.ROOT, package, "**", "*.py"), recursive=True):
                name = os.path.relpath(path, harness.ROOT).replace(os.sep, "/")
                found.update((name, *call) for call in reads(path))
        self.assertEqual(found, OF_THE_USERS_OWN | RESTRICTED)

    def test_arrays_come_without_objects(self):
        for path in glob.glob(os.path.join(harness.ROOT, "[hmt][!e]*", "*.py")):
            with open(path) as f:
                self.assertNotIn("allow_pickle=True", f.read(), path)


if __name__ == "__main__":
    unittest.main()
