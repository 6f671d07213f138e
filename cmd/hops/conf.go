package main

import (
	"os"
	"path/filepath"
)

// devDirectory is where `hops dev` keeps its data unless told otherwise.
func devDirectory() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "hops", "dev"), nil
}

// confDirectory is the directory of the client's configuration: HADOOP_CONF_DIR, else that of a local `hops dev`, else "".
func confDirectory() string {
	if dir := os.Getenv("HADOOP_CONF_DIR"); dir != "" {
		return dir
	}
	if dev, err := devDirectory(); err == nil {
		conf := filepath.Join(dev, "conf")
		if _, err := os.Stat(filepath.Join(conf, "core-site.xml")); err == nil {
			return conf
		}
	}
	return ""
}
