"""``gsched completion``: what makes a shell complete the options of all commands.

The scripts ask the command itself (see `gsched.cli.completing`). stdin is /dev/null and stderr is
thrown away, so that whatever answers, also a gsched of another version, can neither read from the
user's terminal nor write to it.
"""

import click

from gsched.cli.local.options import SETTINGS

COMMANDS = (
    *("gsub", "gstat", "gdel", "ghold", "grls", "gsig", "grerun", "galter"),
    *(
        "gpeek",
        "gwait",
        "gnodes",
        "ghist",
        "gmigrate",
        "gmgr",
        "gmove",
        "gmsg",
        "gprio",
        "gseff",
        "gselect",
        "gres",
        "glimits",
        "gshare",
    ),
    *("greport", "gattach", "gshell", "gsched", "gsim"),
)

_BASH = r"""
_gsched_complete() {  # VARIABLE COMMAND WORD
    local kind value text
    COMPREPLY=()
    while IFS=$'\t' read -r kind value text; do
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            open) COMPREPLY+=("$value"); compopt -o nospace ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
            command) mapfile -t COMPREPLY < <(compgen -c -- "$3") ;;
        esac
    done < <(env "$1=complete" COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORD="$3" "$2" \
        </dev/null 2>/dev/null)
}
"""
_BASH_EACH = """
_gsched_complete_{name}() {{ _gsched_complete {variable} "$1" "$2"; }}
complete -o nosort -F _gsched_complete_{name} {name}
"""

_ZSH = r"""
(( $+functions[compdef] )) || { autoload -Uz compinit; compinit -i; }
_gsched_complete() {  # VARIABLE
    local kind value text
    local -a plain shown open
    while IFS=$'\t' read -r kind value text; do
        case $kind in
            plain) plain+=("$value"); shown+=("$value${text:+  -- $text}") ;;
            open) open+=("$value") ;;
            file) _files ;;
            dir) _files -/ ;;
            command) _command_names ;;
        esac
    done < <(env "$1=complete" COMP_LINE="${(j: :)words[1,CURRENT-1]} $PREFIX" "${(Q)words[1]}" \
        </dev/null 2>/dev/null)
    (( $#plain )) && compadd -V gsched -l -d shown -a plain
    (( $#open )) && compadd -V gsched -S '' -a open
    return 0
}
"""
_ZSH_EACH = """
_gsched_complete_{name}() {{ _gsched_complete {variable}; }}
compdef _gsched_complete_{name} {name}
"""

_FISH = r"""
function _gsched_complete # VARIABLE COMMAND
    set -l line (commandline -cp)
    for row in (env $argv[1]=complete COMP_LINE="$line" $argv[2] </dev/null 2>/dev/null)
        set -l part (string split \t -- $row)
        switch $part[1]
            case plain open
                printf '%s\t%s\n' $part[2] $part[3]
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct) ''
            case command
                complete -C (commandline -ct)
        end
    end
end
"""
_FISH_EACH = """
complete --no-files --keep-order --command {name} --arguments '(_gsched_complete {variable} {name})'
"""

_SCRIPTS = {"bash": (_BASH, _BASH_EACH), "zsh": (_ZSH, _ZSH_EACH), "fish": (_FISH, _FISH_EACH)}


@click.command("completion", context_settings=SETTINGS)
@click.argument("shell", type=click.Choice(list(_SCRIPTS)))
def completion(*, shell: str) -> int:
    """Print the completion script of all commands for SHELL, for its start-up file.

    \b
    bash: source <(gsched completion bash)
    zsh:  source <(gsched completion zsh)
    fish: gsched completion fish | source
    """  # noqa: D301 - \b is click's mark, and a raw text would keep its backslash
    common, each = _SCRIPTS[shell]
    print(common.strip())
    for name in COMMANDS:
        print(each.format(name=name, variable=f"_{name.upper()}_COMPLETE").strip())
    return 0
