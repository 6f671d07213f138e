package main

// byHand is a cluster that is laid without the commands of getting in, by copied files and a network that is trusted; what can happen to
// a cluster happens to it.
func byHand() []step {
	return []step{
		{name: "install", what: "the deb is on every machine", run: install},
		{name: "hand", what: "five machines with identities of their own, three namenodes and resource managers", needs: []string{"install"}, run: hand},
		{name: "home", what: "a user has a home directory", needs: []string{"hand"}, run: home},
		{name: "search", what: "the user runs the demo's search", needs: []string{"home"}, run: search},
		{name: "datanode", what: "a datanode's cable is pulled and plugged in again", needs: []string{"home"}, run: datanode},
		{name: "failover", what: "the leader's cable is pulled; another one leads", needs: []string{"home"}, run: failover},
		{name: "restart", what: "all five lose power; they serve within 10 s", needs: []string{"home"}, run: restart},
	}
}

// story is what make cluster does, in this order.
func story() []step {
	return []step{
		{name: "install", what: "the deb is on every machine", run: install},
		{name: "network", what: "machines reach each other by name, IPv4 and IPv6", run: reach},
		{name: "cable", what: "a cable is pulled and plugged in", needs: []string{"network"}, run: cable},
		{name: "alone", what: "a cluster on one machine: servers as their units run them, a file and a job of a user", needs: []string{"install"}, run: alone},
		{name: "address", what: "a machine that does not know its address asks for it", needs: []string{"install"}, commands: []string{"cluster init"}, run: address},
		{name: "init", what: "the first machine makes the cluster", needs: []string{"install", "network"}, commands: []string{"cluster init"}, run: initialize},
		{name: "join", what: "four machines join, 5 s each at most; two are namenodes and resource managers", needs: []string{"init"}, commands: []string{"cluster token", "join"}, run: join},
		{name: "again", what: "a machine that is in, a forged token and a wrong address are refused in one line", needs: []string{"join"}, commands: []string{"join"}, run: again},
		{name: "nodes", what: "the list of machines has all five, on each", needs: []string{"join"}, commands: []string{"cluster nodes"}, run: nodes},
		{name: "login", what: "users who are not root log in, also on a machine that is no server's", needs: []string{"join"}, commands: []string{"user token", "login"}, run: login},
		{name: "home", what: "the user has a home directory", needs: []string{"login"}, run: home},
		{name: "files", what: "the user writes and reads from outside", needs: []string{"home"}, run: files},
		{name: "job", what: "the user's job runs as the user on other machines", needs: []string{"home"}, run: job},
		{name: "search", what: "the user runs the demo's search", needs: []string{"home"}, run: search},
		{name: "managers", what: "a resource manager that leads is killed, the next one loses its cable, under load", needs: []string{"home"}, run: managers},
		{name: "members", what: "a resource manager is taken out of the group and in again", needs: []string{"join"}, commands: []string{"resourcemanager remove"}, run: managerMembers},
		{name: "datanode", what: "a datanode's cable is pulled; its file is read; it comes back", needs: []string{"home"}, run: datanode},
		{name: "failover", what: "the leader's cable is pulled; another one leads", needs: []string{"home"}, run: failover},
		{name: "replace", what: "the machine whose namenode leads loses its disks and is replaced", needs: []string{"home"}, commands: []string{"cluster replace"}, run: replace},
		{name: "transfer", what: "leadership is handed over", needs: []string{"join"}, commands: []string{"namenode transfer"}, run: transfer},
		{name: "decommission", what: "a datanode is drained and taken back", needs: []string{"home"}, commands: []string{"dfsadmin"}, run: decommission},
		{name: "maintenance", what: "a datanode is stopped for a while, and nothing is copied", needs: []string{"home"}, commands: []string{"dfsadmin"}, run: maintenance},
		{name: "trusted", what: "clients.simple is loud, and over when it is taken out", needs: []string{"join"}, commands: []string{"doctor"}, run: trusted},
		{name: "rotate", what: "the authority is rotated without a stop", needs: []string{"home"}, commands: []string{"cluster rotate"}, run: rotate},
		{name: "restart", what: "all five lose power; they serve within 10 s", needs: []string{"home"}, run: restart},
		{name: "remove", what: "a machine is removed, and refused within seconds, also when it starts again", needs: []string{"nodes"}, commands: []string{"cluster remove"}, run: remove},
		{name: "return", what: "a removed machine joins again, with its data", needs: []string{"home", "remove"}, commands: []string{"join"}, run: comeBack},
		{name: "backup", what: "all namenodes and resource managers are lost with their disks, and restored", needs: []string{"home"}, commands: []string{"cluster backup", "cluster restore"}, run: backup},
	}
}
