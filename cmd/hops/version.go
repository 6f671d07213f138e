package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/nodemanager/gpu/nvml"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version",
		Flags: []cli.Flag{outputFlag()},
		Action: func(c *cli.Context) error {
			asJSON, err := wantJSON(c)
			if err != nil {
				return err
			}
			facts := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				OS      string `json:"os"`
				Arch    string `json:"arch"`
				NVML    bool   `json:"nvml"`
				// Level is the newest level of the cluster's formats that the program knows, Oldest the oldest of a cluster it works in.
				Level  int `json:"level"`
				Oldest int `json:"oldest"`
			}{version, runtime.Version(), runtime.GOOS, runtime.GOARCH, nvml.Built, release.Level, release.Oldest}
			if asJSON {
				return json.NewEncoder(c.App.Writer).Encode(facts)
			}
			_, err = fmt.Fprintf(c.App.Writer, "hops %s (%s, %s/%s), level %d, for clusters from level %d on\n", facts.Version, facts.Go, facts.OS, facts.Arch, facts.Level, facts.Oldest)
			return err
		},
	}
}
