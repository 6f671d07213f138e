package namenode

// Member is what a namenode's /health says of a member of the namenodes' group. Of how far it is and when it answered, only the
// leader knows.
type Member struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
	// Known: Match, the last entry that it shares with the leader, and Silent, the seconds since it answered, are known.
	Known  bool    `json:"known"`
	Match  uint64  `json:"match"`
	Silent float64 `json:"silent_s"`
}
