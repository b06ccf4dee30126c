"""Completion in a shell: what may follow on a command line, found by the parser that would read it.

The shell's function (see SCRIPTS) calls the command with COMPLETE_VARIABLE set; the words before the cursor are its
arguments. `Flags` then prints candidates instead of parsing. Where it prints none, the shell completes file names.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

COMPLETE_VARIABLE = "EVERSTEP_COMPLETE"
RUN = "RUN"
"""Metavars that begin so are names of runs."""


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """What may stand in place of the last word, which may be empty."""
    *before, last = [word for word in words if word != "="] or [""]
    place, runs = _find_place(parser, before), _runs_folder(before)
    option = _option_of(place, before)
    if option is not None:
        possible = _values(option, runs)
    elif last.startswith("-"):
        possible = (name for name in place._option_string_actions if "_" not in name)
    else:
        positional = [action for action in place._actions if not action.option_strings]
        possible = (value for action in positional for value in _values(action, runs))
    return sorted({value for value in possible if value.startswith(last)})


def _find_place(parser: argparse.ArgumentParser, words: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of the innermost verb."""
    for word in words:
        verbs = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
        parser = verbs.choices.get(word, parser) if verbs else parser
    return parser


def _option_of(parser: argparse.ArgumentParser, before: Sequence[str]) -> argparse.Action | None:
    """The flag whose value is to be completed."""
    action = parser._option_string_actions.get(before[-1].replace("_", "-")) if before else None
    return action if action is not None and action.nargs not in (0, "?") else None


def _values(action: argparse.Action, runs: Path) -> Iterator[str]:
    if str(action.metavar or "").startswith(RUN):
        yield from (path.parent.name for path in runs.glob("*/manifest.json"))
    yield from (str(choice) for choice in action.choices or () if choice != "")


def _runs_folder(before: Sequence[str]) -> Path:
    return Path(before[before.index("--runs") + 1]) if "--runs" in before[:-1] else Path("runs")


_CALL = f"{COMPLETE_VARIABLE}=1"
BASH = f"""# everstep, and `python FILE` of a pipeline. In ~/.bashrc: source <(everstep completion bash)
_everstep_complete() {{
    local IFS=$'\\n' words=("${{COMP_WORDS[@]:1:COMP_CWORD}}") command=("${{COMP_WORDS[0]}}")
    if [[ $1 != everstep ]]; then
        [[ $COMP_CWORD -gt 1 && -f ${{words[0]}} ]] && grep -q everstep.submit "${{words[0]}}" || return
        command+=("${{words[0]}}") words=("${{words[@]:1}}")
    fi
    COMPREPLY=($({_CALL} "${{command[@]}}" "${{words[@]}}" 2>/dev/null))
}}
complete -o default -F _everstep_complete everstep python python3
"""
ZSH = f"""# everstep, and `python FILE` of a pipeline. In ~/.zshrc, after compinit: source <(everstep completion zsh)
_everstep_complete() {{
    local -a command found
    command=("${{words[1]}}")
    integer first=2
    if [[ ${{words[1]:t}} != everstep ]]; then
        if (( CURRENT < 3 )) || ! grep -q everstep.submit "${{words[2]}}" 2>/dev/null; then _default; return; fi
        command+=("${{words[2]}}") first=3
    fi
    found=(${{(f)"$({_CALL} "${{command[@]}}" "${{(@)words[first,CURRENT]}}" 2>/dev/null)"}})
    if (( $#found )); then compadd -a found; else _files; fi
}}
compdef _everstep_complete everstep python python3
"""
FISH = f"""# everstep, and `python FILE` of a pipeline. In ~/.config/fish/config.fish: everstep completion fish | source
function __everstep_complete
    set -l words (commandline -opc) (commandline -ct)
    if test $words[1] != everstep
        test (count $words) -gt 2; and grep -q everstep.submit $words[2] 2>/dev/null; or return
    end
    env {_CALL} $words 2>/dev/null
end
complete -c everstep -a '(__everstep_complete)'
complete -c python -a '(__everstep_complete)'
complete -c python3 -a '(__everstep_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
"""What the shell reads when it starts."""
