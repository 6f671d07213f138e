package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// yarnTests are the tests of the resource manager's REST interface that hold it to recorded answers of Apache YARN.
const yarnTests = "^(TestRecordedExchanges|TestYARNSubmissionsBecomeMasters)$"

// yarnRow holds the resource manager's answers to the recorded ones of Apache YARN. A recorded exchange is a case.
func (s *suite) yarnRow(ctx context.Context) error {
	say("YARN REST, against recorded answers")
	row := &row{name: "yarn", title: "YARN REST, recorded answers"}
	s.rows = append(s.rows, row)
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-run", yarnTests, "./resourcemanager/rest")
	cmd.Env = os.Environ()
	out, err := output(cmd)
	if len(out) == 0 {
		return fmt.Errorf("the tests of resourcemanager/rest did not run: %w", err)
	}
	results, err := readTests(out, true)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("the tests of resourcemanager/rest do not build:\n%s", indent(string(out)))
	}
	for _, r := range results {
		if r.verdict == "pass" {
			row.add(r.name, passed, "")
		} else {
			row.add(r.name, failed, indent(r.output))
		}
	}
	return nil
}
