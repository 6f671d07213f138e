package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gohops/hops/internal/yaml"
)

// log4j sends what Hadoop logs to standard error, warnings and worse only: the servers' log files.
const log4j = `log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
`

// writeSite writes a folder of Hadoop configuration. Settings of HDFS go into hdfs-site.xml: in core-site.xml HDFS's
// defaults would win over them.
func writeSite(dir string, pairs [][2]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var core, hdfs [][2]string
	for _, p := range pairs {
		if strings.HasPrefix(p[0], "dfs.") {
			hdfs = append(hdfs, p)
		} else {
			core = append(core, p)
		}
	}
	for name, text := range map[string]string{"core-site.xml": siteXML(core), "hdfs-site.xml": siteXML(hdfs), "log4j.properties": log4j} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func siteXML(pairs [][2]string) string {
	var b strings.Builder
	b.WriteString("<?xml version=\"1.0\"?>\n<configuration>\n")
	for _, p := range pairs {
		b.WriteString("  <property><name>" + escape(p[0]) + "</name><value>" + escape(p[1]) + "</value></property>\n")
	}
	b.WriteString("</configuration>\n")
	return b.String()
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// addToSite adds properties to a file that is there.
func addToSite(path string, pairs [][2]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	body, ok := strings.CutSuffix(strings.TrimSpace(string(text)), "</configuration>")
	if !ok {
		return fmt.Errorf("%s is no Hadoop configuration", path)
	}
	_, more, _ := strings.Cut(siteXML(pairs), "<configuration>\n")
	return os.WriteFile(path, []byte(body+more), 0o644)
}

func writeYAML(path string, v any) error {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
