"""Publishes with the Python package of hops what standard input says: a list of steps as WebHDFS has them. Argument: publish, or raise, for a block that
ends with an exception. Prints `published SNAPSHOT`, or the exception's classes and its text."""
import json
import sys

from hops import hdfs


def main(what):
    steps = json.load(sys.stdin)
    try:
        with hdfs.publish() as p:
            for step in steps:
                for verb, args in step.items():
                    if verb == "rename":
                        p.rename(args["source"], args["destination"], overwrite=args["overwrite"])
                    elif verb == "delete":
                        p.delete(args["path"], recursive=args["recursive"], if_there=args["ifThere"])
                    elif verb == "setXAttr":
                        p.set_xattr(args["path"], args["name"], args["value"])
                    elif verb == "removeXAttr":
                        p.remove_xattr(args["path"], args["name"])
                    else:
                        p.snapshot(args["path"], args["name"])
            if what == "raise":
                1 / 0
    except (OSError, ZeroDivisionError) as e:
        print("failed", [c.__name__ for c in type(e).__mro__], e)
        return
    print("published", p.snapshot_path)


main(sys.argv[1])
