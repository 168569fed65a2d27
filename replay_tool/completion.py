"""Shell completion, made from the parser itself so that it never lags behind it."""

from __future__ import annotations

import argparse

from lmr.replay_tool.command_line import build_parser
from lmr.replay_tool.manual import PAGES


def script(shell: str) -> str:
    """The completion script for `bash`, `zsh` or `fish`."""
    options = _options(build_parser())
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](options)


def _options(parser: argparse.ArgumentParser) -> dict[str, list[argparse.Action]]:
    """Options of each verb."""
    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: [a for a in sub._actions if a.option_strings] for name, sub in verbs.choices.items()}


def _words(actions: list[argparse.Action]) -> str:
    return " ".join(option for action in actions for option in action.option_strings)


def _choices(options: dict[str, list[argparse.Action]]) -> list[tuple[str, str]]:
    """Option and words it may take, over all verbs."""
    found = {}
    for actions in options.values():
        for action in actions:
            if action.choices:
                found[action.option_strings[-1]] = " ".join(str(choice) for choice in action.choices)
    return sorted(found.items())


def _bash(options: dict[str, list[argparse.Action]]) -> str:
    cases = "\n".join(f'    {name}) words="{_words(actions)}" ;;' for name, actions in options.items())
    values = "\n".join(
        f'    {option}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;'
        for option, words in _choices(options)
    )
    return f"""# lmr-replay completion for bash: source <(lmr-replay completion bash)
_lmr_replay() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(options)} --help --version" -- "$word")); return
  fi
  case "$before" in
{values}
  esac
  case "${{COMP_WORDS[1]}}" in
{cases}
    completion) COMPREPLY=($(compgen -W "bash zsh fish" -- "$word")); return ;;
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _lmr_replay lmr-replay
"""


def _zsh(options: dict[str, list[argparse.Action]]) -> str:
    verbs = "\n".join(f"    '{name}:{_quoted(page.summary)}'" for name, page in PAGES.items())
    cases = "\n".join(
        f"    {name}) _arguments {' '.join(_zsh_option(action) for action in actions)} '*:file:_files' ;;"
        for name, actions in options.items()
    )
    return f"""#compdef lmr-replay
# lmr-replay completion for zsh: lmr-replay completion zsh > "${{fpath[1]}}/_lmr-replay"
_lmr_replay() {{
  local -a verbs=(
{verbs}
  )
  if (( CURRENT == 2 )); then _describe verb verbs; return; fi
  local verb=$words[2]
  shift words; (( CURRENT-- ))
  case $verb in
{cases}
  esac
}}
if [ "$funcstack[1]" = "_lmr-replay" ]; then _lmr_replay "$@"; else compdef _lmr_replay lmr-replay; fi
"""


def _zsh_option(action: argparse.Action) -> str:
    text = (action.help or "").replace("'", "").replace("[", "(").replace("]", ")").replace(":", " -")
    value = (
        ""
        if action.nargs == 0
        else f":{'value'}:({' '.join(map(str, action.choices))})"
        if action.choices
        else ":value:_files"
    )
    return f"'{action.option_strings[-1]}[{text}]{value}'"


def _fish(options: dict[str, list[argparse.Action]]) -> str:
    lines = [
        "# lmr-replay completion for fish: lmr-replay completion fish > ~/.config/fish/completions/lmr-replay.fish"
    ]
    lines += [
        f"complete -c lmr-replay -n __fish_use_subcommand -f -a {name} -d '{_quoted(page.summary)}'"
        for name, page in PAGES.items()
    ]
    for name, actions in options.items():
        for action in actions:
            long = action.option_strings[-1].removeprefix("--")
            text = (action.help or "").replace("'", "").splitlines()[0]
            takes = (
                ""
                if action.nargs == 0
                else f" -x -a '{' '.join(map(str, action.choices))}'"
                if action.choices
                else " -r"
            )
            lines.append(f"complete -c lmr-replay -n '__fish_seen_subcommand_from {name}' -l {long}{takes} -d '{text}'")
    lines.append("complete -c lmr-replay -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("'", "’")
