package client_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gohops/hops/client"
	rm "github.com/gohops/hops/resourcemanager"
)

// A program that puts a file into the cluster, runs a command on it and reads what came out. It finds the cluster as the
// hops command does: by HADOOP_CONF_DIR, or on the default ports of this machine.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	home := "/user/" + c.User()
	if err := c.FS().WriteFile(ctx, home+"/in.txt", []byte("hello\n"), true); err != nil {
		log.Fatal(err)
	}
	id, err := c.Jobs().Submit(ctx, client.Job{
		Name: "upper", Argv: []string{"sh", "-c", `tr a-z A-Z < in.txt`},
		Artifacts: []rm.Artifact{{Name: "in.txt", URI: home + "/in.txt"}},
	}, "")
	if err != nil {
		log.Fatal(err)
	}
	status, err := c.Jobs().Wait(ctx, id, func(s client.JobStatus) { fmt.Println(s.State) })
	if err != nil {
		log.Fatal(err)
	}
	if !status.Succeeded() {
		log.Fatalf("%s: %s", id, status.Diagnostics)
	}
}

// Files are read and written through io's interfaces; metadata's errors answer errors.Is with io/fs's.
func ExampleClient_FS() {
	ctx := context.Background()
	c, err := client.New(client.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	list, err := c.FS().List(ctx, "/data")
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range list {
		fmt.Println(f.Name, f.Length)
	}
}

// A client is made without connecting to anything.
func ExampleNew() {
	c, err := client.New(client.Config{ResourceManagers: []string{"127.0.0.1:8088"}, User: "ann"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(c.User(), c.ResourceManagers())
	// Output: ann [http://127.0.0.1:8088]
}
