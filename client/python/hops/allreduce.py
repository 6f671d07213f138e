"""`allreduce.launch(spark, notebook)`: a notebook as a distributed program."""
import ast
import json
import os
import posixpath

from hops import _wrapped, experiment

PROGRAM = "__hops_notebook__.py"


def launch(spark_session=None, notebook=None, name=None, args=(), framework=None, **options):
    """Run the code cells of a notebook (.ipynb), or a script (.py), in all executors together, as one gang: framework is horovod where the program imports it, else
    tensorflow (TF_CONFIG); or the one that is named: horovod, tensorflow, torch, jax, mpi, plain.
    notebook is a path here or in the cluster's filesystem. What a cell says to IPython (% and !) is left out. spark_session is not used. Returns the directory
    of the experiment, in which the output of rank 0 is output.log of trial 0001."""
    if notebook is None:
        raise TypeError("the notebook is missing: its path, here or in the cluster")
    text = program(notebook)
    tree = ast.parse(text, str(notebook))
    compile(tree, str(notebook), "exec")  # a mistake is known before anything runs
    fn = _Program(PROGRAM, list(map(str, args)))
    members = options.pop("executors", experiment.defaults["executors"])
    spec = {"kind": "EXPERIMENT", "extra_files": {PROGRAM: text.encode("utf-8")}}
    result = experiment.gang(fn, spec, name or posixpath.splitext(posixpath.basename(str(notebook)))[0], None,
                             framework or ("horovod" if _imports(tree, "horovod") else "tensorflow"), members, **options)
    return result and result["directory"]


class _Program(_wrapped.Function):
    """A program in place of a function."""

    def __init__(self, name, arguments):
        super().__init__(_wrapped.script)
        self.name, self.arguments = name, arguments
        self.__name__ = self.__qualname__ = "program"

    def text(self, places, files):
        return "from hops import _wrapped\nfunction = _wrapped.script(%r, %r)\n" % (self.name, self.arguments)


def _imports(tree, package):
    """Whether a program imports a package, or something in it."""
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any((name + ".").startswith(package + ".") for name in names):
            return True
    return False


def program(notebook):
    """The source text of a notebook or script."""
    path = str(notebook)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            text = f.read()
    else:
        from hops import hdfs
        try:
            text = hdfs.load(path).decode("utf-8")
        except FileNotFoundError:
            raise FileNotFoundError("the notebook %s is neither here nor in the cluster (%s)" % (path, hdfs.abs_path(path))) from None
    if not path.endswith(".ipynb"):
        return text
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("%s is no notebook of format 4" % path) from None
    parts = []
    for cell in cells:
        if cell.get("cell_type") == "code":
            source = "".join(cell["source"])
            if source.lstrip().startswith("%%"):
                continue
            parts.append("\n".join(_plain(line) for line in source.split("\n")))
    return "\n\n".join(parts) + "\n"


def _plain(line):
    """A line of a cell; what is for IPython becomes a comment, in a place where a statement may stand."""
    text = line.lstrip()
    return line[:len(line) - len(text)] + "pass  # " + text if text.startswith(("%", "!")) else line
