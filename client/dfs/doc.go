// Package dfs is a complete client of an HDFS file system: hops, or Hadoop 3.
//
//	client, err := dfs.New(dfs.Config{Namenodes: []string{"127.0.0.1:8020"}})
//	...
//	defer client.Close()
//	err = client.WriteFile(ctx, "/user/ann/hello", []byte("hello"), false)
//	r, err := client.Open(ctx, "/user/ann/hello")
//
// With several namenodes the client finds the one that leads and follows it when that changes; an operation whose answer
// was lost on the way is repeated under the identity of the first, so it is carried out once. Data goes straight to and
// from datanodes, checked byte by byte; a datanode that fails is left for another one, while reading and while writing.
//
// Errors that the server or this package can name are an *Error of a kind of package metadata, so that
// errors.Is(err, metadata.ErrNotExist), and where the standard library has the word errors.Is(err, fs.ErrNotExist),
// hold. DESIGN.md says how it works inside.
package dfs
