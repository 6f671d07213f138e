"""A master of its own: three containers are asked for, each is told what to run when it is granted, and the job has succeeded when all have ended
well. Nothing but HTTP and JSON: docs/how-to/masters.md. Submit: hops job run -f examples/master.yaml"""
import json, os, ssl, sys, time, urllib.error, urllib.request

MANAGERS = os.environ["HOPS_RM"].split(",")
PATH = "/api/v1/applications/%s/attempts/%s" % (os.environ["HOPS_APPLICATION_ID"], os.environ["HOPS_ATTEMPT"])
TLS = ssl.create_default_context(cafile=os.environ.get("HOPS_AUTHORITY"))


def call(method, path, body=None):
    """Asks one resource manager after the other, until one answers: only one of them leads."""
    with open(os.environ["HOPS_TOKEN"]) as f:
        headers = {"Authorization": "Bearer " + f.read().strip(), "Content-Type": "application/json"}
    while True:
        for manager in MANAGERS:
            scheme = "http://" if manager.startswith("127.") else "https://"
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(scheme + manager + PATH + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=90, context=TLS if scheme == "https://" else None) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as e:
                if e.code < 500 and e.code != 307:  # 307: it does not lead; 410: another attempt goes on
                    sys.exit("%s %s: %d %s" % (method, path, e.code, e.read().decode()))
            except OSError:
                pass
        time.sleep(1)


call("PUT", "/registration", {})
call("POST", "/requests", {"asks": [{"id": "workers", "count": 3, "resources": {"memory": "128MiB"}}]})
done, last = 0, 0
while done < 3:
    news = call("GET", "/events?wait=30s&after=%d" % last)
    last = news["last"]
    for event in news["events"]:
        container = event.get("container")
        if event["type"] == "granted":
            run = {"containers": [container["id"]], "launch": {"run": "echo I run; date"}}
            for launched in call("POST", "/launches", {"launches": [run]})["launches"]:
                if "problem" in launched:
                    sys.exit("%s is not launched: %s" % (container["id"], launched["problem"]["detail"]))
        elif event["type"] == "completed" and container["exit_status"] != 0:
            sys.exit("%s ended with %d" % (container["id"], container["exit_status"]))  # the resource manager starts us again
        elif event["type"] == "completed":
            done += 1
call("PUT", "/result", {"final_status": "SUCCEEDED"})
