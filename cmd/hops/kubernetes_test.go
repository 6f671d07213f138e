package main

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/yaml"
)

// object is what a manifest says, as far as the program has to agree with it.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		ServiceName, ClusterIP   string
		PublishNotReadyAddresses bool
		Replicas                 int
		Ports                    []struct{ Port int }
		Selector                 struct{ MatchLabels map[string]string }
		Template                 struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		}
		VolumeClaimTemplates []struct{ Metadata struct{ Name string } }
	}
	Resources []string
	Images    []struct{ Name string }
}

type podSpec struct {
	HostNetwork, ShareProcessNamespace bool
	SecurityContext                    struct{ RunAsUser int }
	Containers                         []container
	Volumes                            []struct {
		Name     string
		HostPath struct{ Path string }
		Secret   struct{ SecretName string }
	}
}

type container struct {
	Image, Command  string
	Args            []string
	SecurityContext struct {
		Privileged bool
		RunAsUser  *int
	}
	Env []struct {
		Name      string
		ValueFrom struct{ FieldRef struct{ FieldPath string } }
	}
	Ports []struct {
		Name          string
		ContainerPort int
	}
	StartupProbe, ReadinessProbe, LivenessProbe struct {
		HTTPGet struct{ Path, Port, Scheme string }
	}
	VolumeMounts []struct{ Name, MountPath string }
}

// manifests are the objects of deploy/kubernetes, by kind and name.
func manifests(t *testing.T) map[string]object {
	t.Helper()
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out := map[string]object{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var o object // the names of its fields differ by case from those of the manifest
			as, err := yaml.ToJSON(path, []byte(document))
			if err == nil {
				err = json.Unmarshal(as, &o)
			}
			if err != nil {
				t.Fatal(err)
			}
			out[o.Kind+" "+o.Metadata.Name] = o
		}
	}
	return out
}

// What the manifests for Kubernetes say is true of this program: commands, options, roles, ports, paths of probes, directories, the image's user.
func TestKubernetesManifests(t *testing.T) {
	all := manifests(t)
	howto, err := os.ReadFile("../../docs/how-to/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile("../../deploy/packages/image.go")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`imageUser = ([0-9]+)`).FindSubmatch(image)
	if found == nil {
		t.Fatal("the image's user is not found")
	}
	user, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	service := all["Service masters"]
	if service.Spec.ClusterIP != "None" || !service.Spec.PublishNotReadyAddresses {
		t.Errorf("masters find each other by names: %+v", service.Spec)
	}
	workloads := 0
	for name, o := range all {
		pod := o.Spec.Template.Spec
		if len(pod.Containers) == 0 {
			continue
		}
		workloads++
		t.Run(name, func(t *testing.T) {
			c := pod.Containers[0]
			m, file, target := parsed(t, c)
			runs := pod.SecurityContext.RunAsUser
			if c.SecurityContext.RunAsUser != nil {
				runs = *c.SecurityContext.RunAsUser
			}
			if m.has(authority.NodeManager) != (runs == 0) || m.has(authority.NodeManager) != c.SecurityContext.Privileged || runs != 0 && runs != user {
				t.Errorf("it runs as %d; only a node manager is root, others are the image's user %d", runs, user)
			}
			if !m.run || !pod.ShareProcessNamespace || c.Command != "" || c.StartupProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/livez" {
				t.Errorf("%+v", c)
			}
			// Ports.
			var has, wants, pages []string
			names := map[string]string{}
			for _, p := range c.Ports {
				has = append(has, strconv.Itoa(p.ContainerPort))
				names[p.Name] = strconv.Itoa(p.ContainerPort)
			}
			for _, l := range m.listens() {
				_, port, err := net.SplitHostPort(l)
				if err != nil {
					t.Fatal(err)
				}
				wants = append(wants, port)
			}
			for _, r := range m.roles {
				_, port, _ := net.SplitHostPort(m.http(r))
				pages = append(pages, port)
			}
			slices.Sort(has)
			slices.Sort(wants)
			if !slices.Equal(has, wants) {
				t.Errorf("ports %q, the servers have %q", has, wants)
			}
			for _, p := range []struct{ Path, Port, Scheme string }{c.StartupProbe.HTTPGet, c.ReadinessProbe.HTTPGet, c.LivenessProbe.HTTPGet} {
				if p.Scheme != "HTTPS" || !slices.Contains(pages, names[p.Port]) {
					t.Errorf("probe %+v: there is no such page", p)
				}
			}
			// Directories and the secret.
			where := map[string]string{} // of a mount, the volume
			for _, v := range c.VolumeMounts {
				where[v.MountPath] = v.Name
			}
			var kept, secret string
			for _, v := range pod.Volumes {
				if v.HostPath.Path != "" {
					kept = v.Name
				}
				if v.Secret.SecretName != "" && where[filepath.Dir(file)] == v.Name {
					secret = v.Secret.SecretName
				}
			}
			for _, v := range o.Spec.VolumeClaimTemplates {
				kept = v.Metadata.Name
			}
			if kept == "" || where[filepath.Dir(m.dir)] != kept || where[filepath.Dir(m.data)] != kept {
				t.Errorf("%s and %s are not kept: %v", m.dir, m.data, where)
			}
			if target != "" && (secret == "" || !strings.Contains(string(howto), "secret generic "+secret+" ") || target != "masters.hops.svc:"+strconv.Itoa(devPorts.grpc)) {
				t.Errorf("it joins %s with the token in secret %q", target, secret)
			}
			if o.Kind != "StatefulSet" {
				if !pod.HostNetwork || m.address != "10.0.0.5" {
					t.Errorf("a machine has the address %s", m.address)
				}
				return
			}
			var served []string
			for _, p := range service.Spec.Ports {
				served = append(served, strconv.Itoa(p.Port))
			}
			slices.Sort(served)
			if !slices.Equal(served, wants) || o.Spec.ServiceName != service.Metadata.Name || m.address != "pod-0.masters.hops.svc" {
				t.Errorf("service %s has ports %q; the pod is %s", o.Spec.ServiceName, served, m.address)
			}
			for key, value := range all["PodDisruptionBudget masters"].Spec.Selector.MatchLabels {
				if o.Spec.Template.Metadata.Labels[key] != value {
					t.Errorf("the budget does not count it: %s", key)
				}
			}
		})
	}
	if workloads != 4 {
		t.Errorf("%d workloads", workloads)
	}
	var k object
	for name, o := range all {
		if strings.HasPrefix(name, "Kustomization") {
			k = o
		}
	}
	for _, name := range k.Resources {
		if _, err := os.Stat(filepath.Join("../../deploy/kubernetes", name)); err != nil {
			t.Error(err)
		}
	}
	if len(k.Resources) != 3 || len(k.Images) != 2 {
		t.Errorf("%+v", k)
	}
}

// parsed are the arguments of a container as the program reads them: the machine, the token's file, and whom it joins.
func parsed(t *testing.T, c container) (m *machineSetup, file, target string) {
	t.Helper()
	fields := map[string]string{"metadata.name": "pod-0", "metadata.namespace": "hops", "spec.nodeName": "gpu-1", "status.hostIP": "10.0.0.5"}
	args := []string{"hops"}
	for _, a := range c.Args {
		for _, e := range c.Env {
			a = strings.ReplaceAll(a, "$("+e.Name+")", fields[e.ValueFrom.FieldRef.FieldPath])
		}
		if strings.Contains(a, "$(") {
			t.Errorf("%s: no such variable", a)
		}
		args = append(args, a)
	}
	app := newApp(nil, io.Discard, io.Discard)
	take := func(c *cli.Context) (err error) {
		m, err = setup(c, "127.0.0.1:9")
		file, target = c.String("token-file"), c.Args().First()
		return err
	}
	for _, command := range app.Commands {
		switch command.Name {
		case "join":
			command.Action = take
		case "cluster":
			for _, sub := range command.Subcommands {
				if sub.Name == "init" {
					sub.Action = take
				}
			}
		}
	}
	if err := app.RunContext(t.Context(), flagsFirst(app, args)); err != nil || m == nil {
		t.Fatalf("%q: %v", args, err)
	}
	return m, file, target
}
