"""What a person sees of a search that runs: a bar, the best so far, a table of the trials, what was stopped and why.

On a terminal the lines are painted over; in Jupyter they are HTML that is updated in place, without widgets; elsewhere there is a line when
something changed. The table follows the experiment's server-sent events, everything else the summary.
"""
import collections
import html
import shutil
import sys
import threading
import time

# Rows of the table; a search of thousands of trials shows what runs and what ended last.
ROWS = 12
BAR = 30
LOG_BYTES = 256 << 10  # of a trial's log, read at once


class Trials:
    """The trials as the events told. add() and rows() may be called by different threads."""

    def __init__(self):
        self._lock = threading.Lock()
        self._rows = collections.OrderedDict()  # by trial, the one that changed last at the end
        self.stopped = collections.Counter()

    def add(self, event, data):
        with self._lock:
            if event == "reset":
                self._rows.clear()
                self.stopped.clear()
                for row in data.get("trials") or []:
                    self._put(row)
            elif event == "trial":
                self._put(data)
            elif event == "report":
                row = self._rows.get(data.get("trial"))
                points = data.get("points") or data.get("curve") or []
                if row is not None and points:
                    row["metric"] = points[-1][1]
                    row["epochs"] = row.get("epochs", 0) + len(points)

    def _put(self, row):
        before = self._rows.pop(row["trial"], {})
        if row["state"] == "STOPPED" and before.get("state") != "STOPPED":
            self.stopped[_kind(row.get("reason") or "")] += 1
        self._rows[row["trial"]] = {k: row.get(k) for k in ("trial", "state", "params", "epochs", "metric", "reason", "error", "log", "attempt")}

    def rows(self, count=ROWS):
        """Those that run, then those that changed last, in the order of their numbers."""
        with self._lock:
            running = [r for r in self._rows.values() if r["state"] in ("RUNNING", "SCHEDULED")]
            rest = [r for r in reversed(self._rows.values()) if r["state"] not in ("RUNNING", "SCHEDULED", "PENDING")]
            return sorted(map(dict, (running + rest)[:count]), key=lambda r: r["trial"])

    def logs(self):
        """(trial, path) of the logs of the trials that have begun."""
        with self._lock:
            return [(r["trial"], r["log"]) for r in self._rows.values() if r.get("log")]


def _kind(reason):
    """The rule that stopped a trial, without the numbers."""
    return reason.split(":")[0].split(" (")[0][:40] or "stopped early"


def value(v):
    return "%.5g" % v if isinstance(v, (int, float)) and not isinstance(v, bool) else "" if v is None else str(v)


def headline(job, live):
    """One line: where the job stands, how many trials have ended, the best."""
    line = "%s %s" % (job["id"], job["phase"])
    if job["phase"] == "PENDING" and job.get("pending_reason"):
        line += ": %s" % job["pending_reason"]["text"]
    if live:
        line += "  trials %d/%d" % (live["ended"], live["planned"])
        best = live.get("best")
        if best:
            line += "  best %s %.5g (trial %s)" % (live["metric"], best["metric"], best["trial"])
    return line


def progress(live, width=BAR):
    done = min(1.0, live["ended"] / max(1, live["planned"]))
    full = int(done * width)
    return "[%s%s] %3d %%" % ("█" * full, "·" * (width - full), int(done * 100))


def describe(row):
    """What became of a trial and why."""
    why = row.get("reason") or (row.get("error") or {}).get("message") or ""
    return "%s%s" % (row["state"], ": " + why if why else "")


def params(found):
    return " ".join("%s=%s" % (k, value(v)) for k, v in (found or {}).items())


def lines(job, live, trials, now, width=100):
    """The painting for a terminal."""
    out = [headline(job, live)]
    if live:
        counters = live.get("counters") or {}
        said = [progress(live)]
        if live.get("started"):
            said.append(duration(now - live["started"] / 1000))
        if counters.get("early_stopped"):
            kinds = ", ".join("%d %s" % (n, k) for k, n in trials.stopped.most_common(3))
            said.append("%d stopped early%s" % (counters["early_stopped"], " (%s)" % kinds if kinds else ""))
        out.append("  ".join(said))
        best = live.get("best")
        if best:
            out.append("best: %s" % params(best.get("params")))
        rows = trials.rows()
        if rows:
            out.append("%-6s %8s %6s  %s" % ("trial", live["metric"][:8], "epochs", "state and parameters"))
        for r in rows:
            out.append("%-6s %8s %6s  %s  %s" % (r["trial"], value(r.get("metric")), r.get("epochs") or 0, describe(r), params(r.get("params"))))
    return [_printable(line)[:max(20, width - 1)] for line in out]


def page(job, live, trials, now):
    """The same in HTML."""
    e = html.escape
    out = ["<div><b>%s</b>" % e(headline(job, live))]
    if live:
        share = min(1.0, live["ended"] / max(1, live["planned"]))
        out.append('<div style="background:#ddd;width:400px"><div style="background:#4a7;width:%dpx">&nbsp;</div></div>' % int(400 * share))
        if live.get("started"):
            out.append("<div>%s</div>" % duration(now - live["started"] / 1000))
        best = live.get("best")
        if best:
            out.append("<div>best %s = %s: %s</div>" % (e(live["metric"]), value(best["metric"]), e(params(best.get("params")))))
        if trials.stopped:
            out.append("<div>stopped early: %s</div>" % e(", ".join("%d %s" % (n, k) for k, n in trials.stopped.most_common())))
        rows = "".join("<tr>%s</tr>" % "".join("<td style='text-align:left'>%s</td>" % e(str(c)) for c in (
            r["trial"], value(r.get("metric")), r.get("epochs") or 0, describe(r), params(r.get("params")))) for r in trials.rows())
        out.append("<table><tr><th>trial</th><th>%s</th><th>epochs</th><th>state</th><th>parameters</th></tr>%s</table>" % (e(live["metric"]), rows))
    return "".join(out) + "</div>"


def duration(seconds):
    seconds = max(0, int(seconds))
    return "%d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)


def _printable(text):
    return "".join(c if c.isprintable() else " " for c in text)


class Plain:
    """A line whenever something has changed."""

    live = False  # whether it wants the events of trials

    def __init__(self, stream):
        self.stream, self._shown = stream, None

    def show(self, job, live, trials):
        line = headline(job, live)
        if line != self._shown:
            print(line, file=self.stream, flush=True)
        self._shown = line

    def say(self, text):
        print(text, file=self.stream, flush=True)

    def end(self):
        pass


class Terminal(Plain):
    """Lines that are painted over."""

    live = True

    def __init__(self, stream):
        super().__init__(stream)
        self._painted = 0

    def show(self, job, live, trials):
        self._clear()
        found = lines(job, live, trials, time.time(), shutil.get_terminal_size().columns)
        self._painted = len(found)
        self.stream.write("".join(line + "\n" for line in found))
        self.stream.flush()

    def _clear(self):
        if self._painted:
            self.stream.write("\x1b[%dF\x1b[J" % self._painted)
            self._painted = 0

    def say(self, text):
        self._clear()
        super().say(text)

    def end(self):
        self._painted = 0  # the last painting stays


class Notebook(Plain):
    """HTML that is updated in place."""

    live = True

    def __init__(self):
        super().__init__(sys.stdout)
        self._handle = None

    def show(self, job, live, trials):
        from IPython.display import HTML, display
        shown = HTML(page(job, live, trials, time.time()))
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class Silent(Plain):
    def __init__(self):
        super().__init__(None)

    def show(self, job, live, trials):
        pass

    def say(self, text):
        print(text, flush=True)


def chosen(quiet):
    """The display for where this process runs."""
    if quiet:
        return Silent()
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell":
        return Notebook()
    return Terminal(sys.stderr) if sys.stderr.isatty() else Plain(sys.stderr)


class Logs:
    """The logs of trials as they grow, each line with its trial."""

    def __init__(self, fs, say):
        self.fs, self.say = fs, say
        self._read, self._rest = {}, {}

    def follow(self, trials, last=False):
        """Show what has come since. Of one log at most LOG_BYTES at once."""
        for trial, path in trials.logs():
            at = self._read.get(path, 0)
            try:
                data = self.fs.read(path, at, LOG_BYTES)
            except OSError:
                continue  # it is not there yet
            self._read[path] = at + len(data)
            text = self._rest.pop(path, b"") + data
            whole, cut, rest = text.rpartition(b"\n")
            if last and rest:
                whole, rest = text, b""
            self._rest[path] = rest
            if whole:
                self.say("\n".join("%s| %s" % (trial, _printable(line)) for line in whole.decode("utf-8", "replace").split("\n")))
