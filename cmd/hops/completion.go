package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

const bashCompletion = `# hops completion for bash. Load it with: source <(hops completion bash)
_hops() {
  local cur="${COMP_WORDS[COMP_CWORD]}"
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$cur" --generate-bash-completion 2>/dev/null)
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]]; then compopt -o nospace; fi
}
complete -o bashdefault -o default -F _hops hops
`

const zshCompletion = `#compdef hops
# hops completion for zsh. Load it with: source <(hops completion zsh)
_hops() {
  local -a found
  found=("${(@f)$("${words[1]}" "${(@)words[2,CURRENT-1]}" "${words[CURRENT]}" --generate-bash-completion 2>/dev/null)}")
  compadd -Q -- "${found[@]}"
}
compdef _hops hops
`

const fishCompletion = `# hops completion for fish. Load it with: hops completion fish | source
complete -c hops -f -a '(set -l t (commandline -opc); $t (commandline -ct) --generate-bash-completion 2>/dev/null)'
`

func completionCommand() *cli.Command {
	scripts := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the completion script of a shell: bash, zsh or fish",
		ArgsUsage: "bash|zsh|fish",
		Action: func(c *cli.Context) error {
			script, ok := scripts[strings.ToLower(c.Args().First())]
			if !ok || c.NArg() != 1 {
				return fail(exitUsage, "completion: name one shell: bash, zsh or fish")
			}
			_, err := fmt.Fprint(c.App.Writer, script)
			return err
		},
	}
}
