package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/python"
	"github.com/gohops/hops/nodemanager/supervisor"
	"github.com/gohops/hops/resourcemanager/am"
	"github.com/gohops/hops/training/controller"
)

// supervisorMain is `hops supervisor DIR`, started by node managers.
func supervisorMain(args []string) int { return supervisor.Main(args) }

// masterMain runs an application master in its container: "am" for commands, "controller" for experiments.
func masterMain(ctx context.Context, which string, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	run := runCommandMaster
	if which == "controller" {
		run = runController
	}
	if err := run(ctx, log); err != nil {
		fmt.Fprintf(stderr, "hops %s: %v\n", which, err)
		return exitFailed
	}
	return 0
}

func runCommandMaster(ctx context.Context, log *slog.Logger) error {
	env, err := am.EnvFrom(os.Getenv)
	if err != nil {
		return err
	}
	env.Logger = log
	return am.Run(ctx, env)
}

func runController(ctx context.Context, log *slog.Logger) error {
	conf, err := loadHadoopConf()
	if err != nil {
		return err
	}
	location, err := conf.LocateAs(os.Getenv("HOPS_FS"), os.Getenv("HOPS_USER"))
	if err != nil {
		return fmt.Errorf("HOPS_FS: %w", err)
	}
	location.Config.Logger = log
	files, err := dfs.New(location.Config)
	if err != nil {
		return err
	}
	defer files.Close()
	env, closer, err := controller.FromEnvironment(os.Getenv, files, python.Zip, log)
	if err != nil {
		return err
	}
	return errors.Join(controller.Run(ctx, env), closer.Close())
}
