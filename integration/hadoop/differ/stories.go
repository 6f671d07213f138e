package differ

// stories are operations that hang together: what one of them alone would seldom find in place.
var stories = []func(g *generator) []Operation{
	concatStory, spaceStory, namesStory, stickyStory, leaseStory, aclStory, attributeStory,
	concatStory, spaceStory, namesStory, stickyStory, leaseStory, aclStory, truncateStory, // datanodes take seconds to cut a block
}

// story tells one, of those with snapshots more where there may be any.
func (g *generator) story() []Operation {
	if g.snapshots && g.chance(60) {
		return pick(g, snapshotStory, snapshotStory, moveStory)(g)
	}
	return pick(g, stories...)(g)
}

// by has a user do an operation.
func by(user string, o Operation) Operation {
	o.User = user
	return o
}

// folder draws where a story takes place, and makes it.
func (g *generator) folder(user string, mode mode) (string, Operation) {
	path := "$R/" + pick(g, "s", "t", "u", "a")
	g.directories.add(path)
	return path, by(user, op("mkdirs", "src", path, "mode", mode, "parents", true))
}

func (g *generator) someone() string { return pick(g, "", "", "alice", "bob", member) }

func (g *generator) written(user, path string) Operation {
	g.files.add(path)
	return by(user, op("write", "src", path, "length", pick(g, 1, 512, 513, 1024, 1500, 3000), "overwrite", true, "parents", true, "blocksize", pick(g, 1024, 1024, 512, 2048)))
}

func concatStory(g *generator) []Operation {
	user := pick(g, "", "alice")
	d, made := g.folder(user, 0o755)
	story := []Operation{made, g.written(user, d+"/a"), g.written(user, d+"/b"), g.written(user, d+"/c")}
	if g.chance(40) {
		story = append(story, by(user, op("replication", "src", d+"/"+pick(g, "a", "b"), "replication", pick(g, 1, 2, 3))))
	}
	if g.chance(40) {
		story = append(story, op("quota", "src", d, "names", pick(g, resetIt, 4, 5), "space", pick(g, 0, 3000, 6000, 20000)))
	}
	return append(story, by(pick(g, user, user, user, g.someone()), op("concat", "dst", d+"/a", "srcs", pick(g, d+"/b", d+"/b,"+d+"/c", d+"/c,"+d+"/b", d+"/b,"+d+"/b"))),
		op("usage", "src", d), op("read", "src", d+"/a"), by(user, op("append", "src", d+"/a", "length", 700)))
}

func spaceStory(g *generator) []Operation {
	d, made := g.folder("", 0o777)
	user := g.someone()
	story := []Operation{made, g.written(user, d+"/a"), g.written(user, "$R/out"), op("quota", "src", d, "names", dontSet, "space", pick(g, 0, 1024, 2048, 4096, 8192))}
	for range 3 {
		story = append(story, by(user, pick(g,
			g.written(user, d+"/b"), g.written(user, d+"/a"),
			op("replication", "src", d+"/a", "replication", pick(g, 1, 2, 3)),
			op("append", "src", d+"/a", "length", pick(g, 1, 1500)),
			op("reopen", "src", d+"/a", "holder", g.holder(), "flags", pick(g, 4, 36), "open", g.chance(50)),
			op("truncate", "src", d+"/a", "length", pick(g, 0, 1, 500, 1024), "holder", g.holder()),
			op("rename", "src", "$R/out", "dst", d+"/in"),
			op("rename2", "src", "$R/out", "dst", d+"/a", "overwrite", true),
			op("rename2", "src", d+"/a", "dst", "$R/out", "overwrite", true),
		)))
	}
	return append(story, op("usage", "src", d), by(user, op("delete", "src", d+"/a", "recursive", false)), op("usage", "src", d))
}

func namesStory(g *generator) []Operation {
	d, made := g.folder("", 0o777)
	user := g.someone()
	story := []Operation{made, op("quota", "src", d, "names", pick(g, 1, 2, 3, 4), "space", dontSet), g.written(user, "$R/out")}
	for range 4 {
		story = append(story, by(user, pick(g,
			op("mkdirs", "src", d+"/"+pick(g, names...), "mode", mode(0o755), "parents", false),
			op("mkdirs", "src", d+"/"+pick(g, names...)+"/"+pick(g, names...), "mode", mode(0o755), "parents", false),
			op("create", "src", d+"/"+pick(g, names...), "mode", mode(0o644), "parents", false, "flags", 1, "replication", 1, "blocksize", 1024, "holder", g.holder(), "open", false),
			op("rename", "src", "$R/out", "dst", d+"/in"),
			op("rename", "src", d, "dst", "$R/a"),
			op("rename2", "src", "$R/a", "dst", d+"/in", "overwrite", g.chance(50)),
			op("rename2", "src", "$R/out", "dst", d+"/a", "overwrite", true),
			op("delete", "src", d+"/"+pick(g, names...), "recursive", true),
			op("fill", "src", d),
		)))
	}
	return append(story, op("usage", "src", d), op("summary", "src", d))
}

func stickyStory(g *generator) []Operation {
	d, made := g.folder(pick(g, "", "alice"), 0o1777)
	first, second := pick(g, "alice", "bob"), pick(g, "alice", "bob", member)
	story := []Operation{made, by("", op("permission", "src", d, "mode", mode(0o1777))), g.written(first, d+"/a"), g.written(second, d+"/b")}
	for range 3 {
		story = append(story, by(pick(g, first, second, member), pick(g,
			op("delete", "src", d+"/"+pick(g, "a", "b"), "recursive", g.chance(50)),
			op("rename", "src", d+"/a", "dst", d+"/c"),
			op("rename", "src", d+"/a", "dst", "$R/out"),
			op("rename2", "src", d+"/a", "dst", d+"/b", "overwrite", true),
			op("delete", "src", d, "recursive", true),
			op("permission", "src", d+"/a", "mode", g.mode()),
			op("owner", "src", d+"/a", "group", member),
			op("setxattr", "src", d, "name", "USER:k", "value", "v", "flag", 1),
			g.written(second, d+"/a"),
		)))
	}
	return story
}

func leaseStory(g *generator) []Operation {
	user := g.someone()
	d, made := g.folder(user, 0o777)
	f := d + "/open"
	g.files.add(f)
	opened := by(user, op("create", "src", f, "mode", mode(0o666), "parents", true, "flags", 3, "replication", 1, "blocksize", 1024, "holder", "writer-1", "open", true))
	if g.chance(50) {
		opened = by(user, op("hold", "src", f, "length", pick(g, 0, 10, 1024, 1500), "blocksize", 1024, "append", false))
	}
	story := []Operation{made, opened}
	for range 4 {
		story = append(story, by(pick(g, user, user, g.someone()), pick(g,
			op("create", "src", f, "mode", mode(0o644), "parents", false, "flags", pick(g, 1, 1, 3), "replication", 1, "blocksize", 1024, "holder", g.holder(), "open", true),
			op("append", "src", f, "length", 10),
			op("reopen", "src", f, "holder", g.holder(), "flags", 4, "open", true),
			op("truncate", "src", f, "length", pick(g, 0, 5), "holder", g.holder()),
			op("complete", "src", f, "holder", g.holder()),
			op("recoverlease", "src", f, "holder", g.holder()),
			op("closed", "src", f),
			op("concat", "dst", f, "srcs", d+"/a"),
			op("replication", "src", f, "replication", 2),
			op("rename", "src", f, "dst", d+"/moved"),
			op("rename", "src", d+"/moved", "dst", f),
			op("delete", "src", f, "recursive", false),
			op("locate", "src", f, "offset", pick(g, 0, 1024), "length", 1<<40),
			op("resume", "length", pick(g, 0, 10, 2000)),
		)))
	}
	return append(story, op("resume", "length", 10), op("read", "src", f))
}

func aclStory(g *generator) []Operation {
	user := pick(g, "", "alice")
	d, made := g.folder(user, 0o775)
	return []Operation{
		made,
		by(user, op("acl", "src", d, "how", pick(g, "modify", "set"), "entries", "user::7,group::5,other::"+pick(g, "0", "5")+",default:user:bob:"+pick(g, "7", "5")+",default:group:"+member+":"+pick(g, "6", "7")+",user:bob:7"+pick(g, "", ",default:mask::4", ",mask::1"))),
		by(pick(g, user, "bob"), g.created(op("mkdirs", "src", d+"/x", "mode", g.mode(), "parents", true))),
		by(pick(g, user, "bob"), g.created(op("create", "src", d+"/x/f", "mode", g.mode(), "parents", g.chance(50), "flags", 1, "replication", 1, "blocksize", 1024, "holder", "writer-1", "open", false))),
		by(pick(g, "bob", member), g.written("", d+"/x/g")),
		by("", op("getacl", "src", d+"/x")),
		by("bob", op("access", "src", d+"/x", "access", g.IntN(8))),
		by(member, op("access", "src", d+"/x/f", "access", g.IntN(8))),
		by(user, op("acl", "src", d+"/x", "how", pick(g, "remove", "modify"), "entries", pick(g, "user:bob:0", "default:user:bob:0", "mask::0", "default:mask::0", "group::6"))),
		by(user, op("permission", "src", d+"/x", "mode", g.mode())),
	}
}

func truncateStory(g *generator) []Operation {
	user := pick(g, "", "alice")
	f := "$R/" + pick(g, "s", "t") + "/cut"
	return []Operation{
		g.written(user, f),
		by(pick(g, user, user, "bob"), op("truncate", "src", f, "length", pick(g, 0, 1, 500, 512, 1000, 1024, 1025), "holder", g.holder())),
		op("read", "src", f),
		by(user, op("append", "src", f, "length", pick(g, 1, 600, 1500))),
		by(user, op("truncate", "src", f, "length", pick(g, 0, 1, 511, 1024, 1100), "holder", g.holder())),
		op("locate", "src", f, "offset", 0, "length", 1<<40),
	}
}

func attributeStory(g *generator) []Operation {
	user := pick(g, "", "alice")
	d, made := g.folder(user, pick[mode](g, 0o755, 0o777, 0o1777))
	on := pick(g, d, d+"/a")
	name := pick(g, attributes...)
	set := func(user, value string, flag int) Operation {
		return by(user, op("setxattr", "src", on, "name", name, "value", value, "flag", flag))
	}
	return []Operation{
		made, g.written(user, d+"/a"), set(user, "v", 1), set(g.someone(), "w", pick(g, 1, 2, 3)),
		by(g.someone(), op("getxattrs", "src", on)), by(pick(g, user, user, g.someone()), op("removexattr", "src", on, "name", name)),
		by(user, op("listxattrs", "src", on)), by(user, op("removexattr", "src", on, "name", name)),
	}
}
