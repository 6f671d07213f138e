package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/client"
	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/history"
	"github.com/gohops/hops/training/registry"
	"github.com/gohops/hops/training/store"
)

func modelCommand() *cli.Command {
	project := &cli.StringFlag{Name: "project", Usage: "models of `PROJECT`", DefaultText: "the user's name"}
	flags := func(more ...cli.Flag) []cli.Flag {
		return append(more, project, confFlag(), userFlag(), outputFlag())
	}
	return &cli.Command{
		Name: "model", Usage: "keep models with what they are made of: export, list, show, best, get, tag, delete",
		Subcommands: []*cli.Command{
			{
				Name: "export", Usage: "make a version of a model", ArgsUsage: "[PATH] NAME[:VERSION]",
				Description: "hops model export /Projects/lab/out/model digits --metric accuracy=0.98\n" +
					"hops model export ./model digits\n" +
					"hops model export --trial application_1_0001_1/0007 digits\n\n" +
					"PATH is a file or directory of the cluster; a relative one, and with --local any, is of this machine. Of a trial the\n" +
					"files of its newest checkpoint are taken, with its parameters and metric. Without VERSION it is the highest plus one.",
				Flags: flags(
					&cli.StringFlag{Name: "trial", Usage: "`ID/TRIAL` that the model comes from; with a PATH, only as its lineage"},
					&cli.Int64Flag{Name: "step", Usage: "the trial's checkpoint of `STEP`", DefaultText: "the newest"},
					&cli.StringSliceFlag{Name: "metric", Aliases: []string{"m"}, Usage: "`NAME=VALUE`"},
					&cli.StringFlag{Name: "description", Usage: "`TEXT` about the version"},
					&cli.BoolFlag{Name: "overwrite", Usage: "replace VERSION if it is there"},
					&cli.BoolFlag{Name: "local", Usage: "PATH is of this machine"},
				),
				Action: exportModel,
			},
			{Name: "list", Aliases: []string{"ls"}, Usage: "list models, or the versions of one", ArgsUsage: "[NAME]", Flags: flags(), Action: listModels},
			{Name: "show", Usage: "show a version of a model and its lineage", ArgsUsage: "NAME[:VERSION]", Flags: flags(), Action: showModel},
			{
				Name: "best", Usage: "show the version with the best value of a metric", ArgsUsage: "NAME",
				Flags: flags(
					&cli.StringFlag{Name: "metric", Aliases: []string{"m"}, Required: true, Usage: "`NAME` of the metric"},
					&cli.StringFlag{Name: "direction", Value: "max", Usage: "`WHICH` is better: max or min"},
				),
				Action: bestModel,
			},
			{Name: "get", Usage: "copy a version of a model to this machine", ArgsUsage: "NAME[:VERSION] [DIRECTORY]", Flags: flags(), Action: getModel},
			{
				Name: "tag", Usage: "set, remove or show tags of a version", ArgsUsage: "NAME[:VERSION] [KEY=VALUE ...]",
				Flags: flags(
					&cli.StringSliceFlag{Name: "delete", Aliases: []string{"d"}, Usage: "remove `KEY`"},
					&cli.StringFlag{Name: "description", Usage: "`TEXT` that replaces the description"},
				),
				Action: tagModel,
			},
			{
				Name: "delete", Aliases: []string{"rm"}, Usage: "delete a version of a model, or with --all the model", ArgsUsage: "NAME[:VERSION]",
				Flags:  flags(&cli.BoolFlag{Name: "all", Usage: "all versions"}),
				Action: deleteModel,
			},
		},
	}
}

// models calls do with a project's registry.
func models(c *cli.Context, least, most int, usage string, do func(*client.Client, *registry.Registry) error) error {
	return withCluster(c, least, most, usage, func(cl *client.Client) error {
		project := c.String("project")
		if project == "" {
			project = cl.User()
		}
		r, err := registry.Open(store.DFS(cl.FS()), project)
		if err != nil {
			return err
		}
		return do(cl, r)
	})
}

// versioned reads NAME[:VERSION]; 0: none is named.
func versioned(text string) (string, int, error) {
	name, v, ok := strings.Cut(text, ":")
	if !ok {
		return name, 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return "", 0, fail(exitUsage, "version %q of %s is no number from 1 on", v, name)
	}
	return name, n, nil
}

func exportModel(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	m := registry.Model{Description: c.String("description"), Metrics: map[string]training.Metric{}}
	for _, text := range c.StringSlice("metric") {
		name, value, ok := strings.Cut(text, "=")
		f, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return fail(exitUsage, "metric %q is not NAME=NUMBER", text)
		}
		m.Metrics[name] = training.M(f)
	}
	words := c.Args().Slice()
	trial := c.String("trial")
	if len(words) == 0 || len(words) > 2 || len(words) == 1 && trial == "" {
		return fail(exitUsage, "%s: give a path, or --trial, and a name for the model", c.Command.FullName())
	}
	if c.IsSet("step") && (trial == "" || len(words) == 2) {
		return fail(exitUsage, "--step names a checkpoint of --trial, which is not what is exported")
	}
	if m.Name, m.Version, err = versioned(words[len(words)-1]); err != nil {
		return err
	}
	if c.Bool("overwrite") && m.Version == 0 {
		return fail(exitUsage, "--overwrite needs to be told what: %s:VERSION", m.Name)
	}
	return models(c, 1, 2, "", func(cl *client.Client, r *registry.Registry) error {
		files := store.DFS(cl.FS())
		if trial != "" {
			if err := ofTrial(c, cl, &m, trial); err != nil {
				return err
			}
		}
		var source registry.Source
		switch {
		case len(words) == 1:
			m.Source, source = m.Checkpoint, registry.FromCheckpoint(files, m.Checkpoint)
		case c.Bool("local") || !strings.HasPrefix(words[0], "/") && !strings.Contains(words[0], "://"):
			full, err := filepath.Abs(strings.TrimPrefix(words[0], "file://"))
			if err != nil {
				return err
			}
			host, err := os.Hostname()
			if err != nil {
				return err
			}
			m.Source, source = host+":"+full, registry.FromLocal(full)
		default:
			p := words[0]
			if _, rest, ok := strings.Cut(p, "://"); ok {
				_, rest, _ = strings.Cut(rest, "/")
				p = "/" + rest
			}
			m.Source, source = p, registry.FromCluster(files, p)
		}
		made, err := r.Export(c.Context, m, source, c.Bool("overwrite"))
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(made.Listing())
		}
		fmt.Fprintf(c.App.Writer, "%s:%d  %s\n", made.Name, made.Version, made.Directory)
		return nil
	})
}

// ofTrial fills in what a trial says about a model.
func ofTrial(c *cli.Context, cl *client.Client, m *registry.Model, text string) error {
	id, number, ok := strings.Cut(text, "/")
	if !ok {
		return fail(exitUsage, "--trial %q is not ID/TRIAL", text)
	}
	trial, err := training.ParseTrialID(number)
	if err != nil {
		return &statusError{exitUsage, err}
	}
	e, err := cl.Experiments().Record(c.Context, id, client.Records{})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(e.Trials, func(t history.Trial) bool { return t.Trial == trial })
	if i < 0 {
		return fmt.Errorf("%s has no trial %v", e.ID, trial)
	}
	t := e.Trials[i]
	m.Trial, m.Params = trial.String(), t.Params
	if _, told := m.Metrics[e.Metric]; !told && t.Metric != nil {
		m.Metrics[e.Metric] = training.M(*t.Metric)
	}
	files := store.DFS(cl.FS())
	if c.NArg() == 1 {
		var step *int64
		if c.IsSet("step") {
			step = new(c.Int64("step"))
		}
		dir, at, err := registry.Checkpoint(c.Context, files, filepath.ToSlash(filepath.Join(e.Directory, m.Trial)), t.Steps, step)
		if err != nil {
			return err
		}
		m.Checkpoint, m.Step = dir, new(at)
	}
	return registry.Lineage(c.Context, files, m, e.Directory)
}

func listModels(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	return models(c, 0, 1, "name one model at most", func(_ *client.Client, r *registry.Registry) error {
		names := c.Args().Slice()
		if len(names) == 0 {
			var err error
			if names, err = r.Names(c.Context); err != nil {
				return err
			}
		}
		out := []registry.Listing{}
		t := newTable(c.App.Writer, "MODEL", "VERSION", "CREATED", "USER", "BYTES", "METRICS", "EXPERIMENT", "TRIAL", "DESCRIPTION")
		for _, name := range names {
			versions, err := r.Versions(c.Context, name)
			if err != nil {
				return err
			}
			for i, m := range versions {
				if c.NArg() == 0 && i < len(versions)-1 {
					continue // of all models the newest
				}
				out = append(out, m.Listing())
				t.row(m.Name, strconv.Itoa(m.Version), m.Created.Time().UTC().Format("2006-01-02 15:04"), m.User, fmt.Sprint(m.Bytes()), metricsText(m), m.Experiment, m.Trial, shorten(m.Description, 40))
			}
		}
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(out)
		}
		return t.flush()
	})
}

func metricsText(m *registry.Model) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m.Metrics)) {
		parts = append(parts, fmt.Sprintf("%s=%.5g", name, m.Metrics[name].Value))
	}
	return strings.Join(parts, " ")
}

func showModel(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	name, version, err := versioned(c.Args().First())
	if err != nil {
		return err
	}
	return models(c, 1, 1, "name one model", func(_ *client.Client, r *registry.Registry) error {
		m, err := r.Version(c.Context, name, version)
		if err != nil {
			return err
		}
		return printModel(c, m, asJSON)
	})
}

func printModel(c *cli.Context, m *registry.Model, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(c.App.Writer).Encode(m.Listing())
	}
	t := newTable(c.App.Writer)
	row := func(what, text string) {
		if text != "" {
			t.row(what, text)
		}
	}
	row("model", fmt.Sprintf("%s:%d", m.Name, m.Version))
	row("directory", m.Directory)
	row("created", m.Created.Time().UTC().Format("2006-01-02 15:04:05")+" by "+m.User)
	row("description", m.Description)
	row("metrics", metricsText(m))
	row("experiment", m.Experiment)
	row("trial", m.Trial)
	row("parameters", parameters(m.Params))
	row("checkpoint", m.Checkpoint)
	if m.Source != m.Checkpoint {
		row("source", m.Source)
	}
	if m.Code != nil {
		row("code", m.Code.SHA256)
	}
	for _, d := range m.Data {
		row("data", d.Path+": "+d.String())
	}
	for _, k := range slices.Sorted(maps.Keys(m.Tags)) {
		row("tag", k+"="+m.Tags[k])
	}
	for _, f := range m.Files {
		row("file", fmt.Sprintf("%s, %d bytes", f.Name, f.Size))
	}
	return t.flush()
}

func bestModel(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	direction := training.Direction(strings.ToLower(c.String("direction")))
	if direction != training.Max && direction != training.Min {
		return fail(exitUsage, "--direction %q: max or min", c.String("direction"))
	}
	return models(c, 1, 1, "name one model", func(_ *client.Client, r *registry.Registry) error {
		m, err := r.Best(c.Context, c.Args().First(), c.String("metric"), direction)
		if err != nil {
			return err
		}
		return printModel(c, m, asJSON)
	})
}

func getModel(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	name, version, err := versioned(c.Args().First())
	if err != nil {
		return err
	}
	return models(c, 1, 2, "name one model and, if you like, a directory", func(_ *client.Client, r *registry.Registry) error {
		m, err := r.Version(c.Context, name, version)
		if err != nil {
			return err
		}
		to := c.Args().Get(1)
		if to == "" {
			to = name
		}
		if err := r.Get(c.Context, m, to); err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(c.App.Writer).Encode(m.Listing())
		}
		fmt.Fprintf(c.App.Writer, "%s:%d  %s\n", m.Name, m.Version, to)
		return nil
	})
}

func tagModel(c *cli.Context) error {
	asJSON, err := wantJSON(c)
	if err != nil {
		return err
	}
	name, version, err := versioned(c.Args().First())
	if err != nil {
		return err
	}
	set, err := pairs(c.Args().Tail())
	if err != nil {
		return err
	}
	return models(c, 1, -1, "name one model", func(cl *client.Client, r *registry.Registry) error {
		m, err := r.Version(c.Context, name, version)
		if err != nil {
			return err
		}
		files := store.DFS(cl.FS())
		if c.IsSet("description") {
			if err := history.SetNote(c.Context, files, m.Directory, c.String("description")); err != nil {
				return err
			}
			if len(set)+len(c.StringSlice("delete")) == 0 {
				return nil
			}
		}
		return changeTags(c, files, m.Directory, set, asJSON)
	})
}

func deleteModel(c *cli.Context) error {
	name, version, err := versioned(c.Args().First())
	if err != nil {
		return err
	}
	if all := c.Bool("all"); all == (version != 0) {
		return fail(exitUsage, "%s: name a version, %s:VERSION, or say --all", c.Command.FullName(), name)
	}
	return models(c, 1, 1, "name one model", func(_ *client.Client, r *registry.Registry) error {
		return r.Delete(c.Context, name, version)
	})
}
