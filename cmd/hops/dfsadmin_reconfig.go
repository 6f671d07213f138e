package main

import (
	"fmt"
	"strings"
)

// reconfigAdmin is DFSAdmin.reconfig for datanodes.
func reconfigAdmin(t *hadoopTool, o *adminOption, args []string) (int, error) {
	kind, addr, verb := args[0], args[1], strings.ToLower(args[2])
	if kind != "datanode" {
		fmt.Fprintf(t.errOut, "Node type %s does not support reconfiguration.\n", kind)
		return exitDisks, nil
	}
	failed := func(doing string, err error) (int, error) {
		fmt.Fprintf(t.errOut, "Node [%s] %s: %s.\n", addr, doing, strings.TrimSuffix(hadoopMessage(err), "."))
		return exitDisks, nil
	}
	switch verb {
	case "start":
		if err := t.fs.Reconfigure(t.ctx, addr); err != nil {
			return failed("reconfiguring", err)
		}
		t.printf("Started reconfiguration task on node [%s].\n", addr)
	case "status":
		r, err := t.fs.Reconfiguration(t.ctx, addr)
		if err != nil {
			return failed("reloading configuration", err)
		}
		t.printf("Reconfiguring status for node [%s]: ", addr)
		switch {
		case r.Began == 0:
			t.printf("no task was found.\n")
			return 0, nil
		case r.Ended == 0:
			t.printf("started at %s and is still running.\n", javaDate(r.Began))
			return 0, nil
		}
		t.printf("started at %s and finished at %s.\n", javaDate(r.Began), javaDate(r.Ended))
		for _, c := range r.Changes {
			if c.Error == "" {
				t.printf("SUCCESS: Changed property %s\n\tFrom: \"%s\"\n\tTo: \"%s\"\n", c.Name, c.Old, c.New)
			} else {
				t.printf("FAILED: Change property %s\n\tFrom: \"%s\"\n\tTo: \"%s\"\n\tError: %s.\n", c.Name, c.Old, c.New, strings.TrimSuffix(c.Error, "."))
			}
		}
	case "properties":
		names, err := t.fs.Reconfigurable(t.ctx, addr)
		if err != nil {
			return failed("reconfiguration", err)
		}
		t.printf("Node [%s] Reconfigurable properties:\n", addr)
		for _, name := range names {
			t.printf("%s\n", name)
		}
	default:
		fmt.Fprintf(t.errOut, "Unknown operation: %s\n", verb)
		t.adminUsage(o.name)
		return exitDisks, nil
	}
	return 0, nil
}
