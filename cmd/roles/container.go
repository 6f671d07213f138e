package roles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/client/python"
	"github.com/gohops/hops/nodemanager/supervisor"
	"github.com/gohops/hops/resourcemanager/am"
	"github.com/gohops/hops/training/controller"
)

// Container runs what node managers start the program for, if the arguments (without the program's name) say so:
// "supervisor DIR" looks after one container; "am" and "controller" are the application masters of commands and of
// experiments, which find everything else in their environment. ok is false for other arguments.
func Container(ctx context.Context, args []string, stderr io.Writer) (status int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	var run func(context.Context, *slog.Logger) error
	switch args[0] {
	case "supervisor":
		return supervisor.Main(args[1:]), true
	case "am":
		run = commandMaster
	case "controller":
		run = experimentMaster
	default:
		return 0, false
	}
	if err := run(ctx, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		fmt.Fprintf(stderr, "hops %s: %v\n", args[0], err)
		return 1, true
	}
	return 0, true
}

func commandMaster(ctx context.Context, log *slog.Logger) error {
	env, err := am.EnvFrom(os.Getenv)
	if err != nil {
		return err
	}
	env.Logger = log
	return am.Run(ctx, env)
}

func experimentMaster(ctx context.Context, log *slog.Logger) error {
	conf := &dfs.HadoopConf{Properties: map[string]string{}}
	if dir := os.Getenv("HADOOP_CONF_DIR"); dir != "" {
		var err error
		if conf, err = dfs.LoadHadoopConf(dir); err != nil {
			return err
		}
	}
	location, err := conf.LocateAs(os.Getenv("HOPS_FS"), os.Getenv("HOPS_USER"))
	if err != nil {
		return fmt.Errorf("HOPS_FS: %w", err)
	}
	location.Config.Logger = log
	location.Config.Unreachable = 30 * time.Second // a namenode may be starting again
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
