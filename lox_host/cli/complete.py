"""What can stand where the cursor is, for the completion of shells."""

import argparse
import os
from collections.abc import Iterable, Sequence

from lox_host.cli.errors import CLIError
from lox_host.cli.select_runs import all_runs, locate, select_runs
from lox_host.store import find_stores

SCRIPTS = {
    "bash": r"""
_lox() {
    local IFS=$'\n'
    COMPREPLY=($(lox __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
    return 0
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//@}
complete -o default -F _lox lox
""",
    "zsh": r"""
#compdef lox
_lox() {
    local -a found
    found=("${(@f)$(lox __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n $found[1] ]] && compadd -S '' -- $found || _files
}
compdef _lox lox
""",
    "fish": r"""
function __lox
    lox __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c lox -f -a '(__lox)'
complete -c lox -s o -l out -r -F
""",
}


def completion(shell: str) -> None:
    """Print what makes a shell complete commands, runs and keys."""
    print(SCRIPTS[shell].strip())


def completions(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """What the last of the words can become."""
    *before, word = words or [""]
    commands = _commands(parser)
    if not before or before[0] not in commands:
        return _beginning(word, [*commands, *_options(parser)])
    own = commands[before[0]]
    option = _option(own, before[-1])
    if option is not None and option.nargs != 0:
        found = option.choices or (_keys(before) if option.dest == "keys" else ())
        return _beginning(word, map(str, found))
    if word.startswith("-"):
        return _beginning(word, _options(own))
    choices = [c for a in own._get_positional_actions() for c in a.choices or ()]
    return _beginning(word, choices) if choices else _runs(word)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for name in parser._option_string_actions if name.startswith("--")]


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return parser._option_string_actions.get(word)


def _runs(word: str) -> list[str]:
    """Stores, and in a store its runs."""
    folder, _ = os.path.split(word)
    try:
        store, _ = locate(word or ".")
        found = [choice.path for choice in all_runs(store)]
    except (CLIError, OSError, ValueError):
        found = [os.path.join(path, "") for path in find_stores(folder or ".")]
    return _beginning(word, found)


def _keys(words: Sequence[str]) -> list[str]:
    """The keys of the runs that have been typed."""
    found: dict[str, None] = {}
    for word in words[1:] or ("",):
        try:
            found |= dict.fromkeys(
                key for run in select_runs(word) for key in run.reader.keys
            )
        except (CLIError, OSError, ValueError):
            continue
    return list(found)


def _beginning(word: str, found: Iterable[str]) -> list[str]:
    return [name for name in found if name.startswith(word)]
