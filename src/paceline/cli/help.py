"""Write the help of commands besides their options (groups, examples, pages), and short errors."""

from __future__ import annotations

import argparse
import difflib
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import NoReturn

LEAST_WIDTH = 40
NAME_WIDTH = 12
# The commands by what one wants to do, in the order of `paceline --help`.
GROUPS = {
    "serve and talk": ("serve", "ui", "chat", "generate"),
    "models": ("list", "pull", "show", "rm", "quality"),
    "measure": ("bench", "explain", "profile", "traces"),
    "drafters": (
        "synth",
        "train",
        "distil",
        "evaluate",
        "drafter",
        "drafters",
        "corpus",
        "autospec",
    ),
    "predict": ("predict", "mock", "roofline"),
    "other engines": ("audit", "doctor", "endpoint", "engine", "tune"),
}
# Of each command: the page of docs/ that describes it, and command lines to start from.
PAGES = {
    "serve": "server-api.md", "ui": "web-ui.md", "profile": "profiling.md",
    "synth": "training-data.md", "train": "training.md", "distil": "distilling.md",
    "evaluate": "evaluation.md",
    "drafter": "drafters.md", "drafters": "autospec.md",
    "predict": "predicting.md", "mock": "mocking.md",
    "roofline": "predicting.md", "engine": "engines.md", "doctor": "evaluation.md",
    "audit": "audit.md", "tune": "tune.md", "traces": "autospec.md", "autospec": "autospec.md",
    "corpus": "autospec.md", "endpoint": "endpoint.md",
}  # fmt: skip
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "serve": (
        "paceline serve",
        "paceline serve Qwen/Qwen3-8B --quantize int8 --port 8001",
        "paceline serve ./my-model --drafter small=./my-small-model",
    ),
    "ui": ("paceline ui --port 8801",),
    "chat": (
        "paceline chat --system 'Answer in one sentence.'",
        "paceline chat --url http://127.0.0.1:8000",
    ),
    "generate": (
        "paceline generate 'The river was'",
        "echo 'The river was' | paceline generate - --json > answer.json",
    ),
    "list": ("paceline list",),
    "show": ("paceline show qwen3-8b", "paceline show ./my-model"),
    "rm": ("paceline rm qwen2.5-coder-0.5b",),
    "pull": ("paceline pull smollm2-135m", "paceline pull Qwen/Qwen3-8B --revision main"),
    "quality": ("paceline quality smollm2-135m --text my-prompts.txt",),
    "bench": (
        "paceline bench smollm2-135m --prompts my-prompts.jsonl --runs 5",
        "paceline bench --url http://127.0.0.1:8000 --concurrency 8",
    ),
    "traces show": (
        "paceline traces ./traces --days 7",
        "paceline traces ./traces --sql 'SELECT finish, count(*) FROM requests GROUP BY finish'",
    ),
    "traces purge": ("paceline traces purge ./traces --key team-a",),
    "traces set": ("paceline traces set ./traces sets/shop --app shop",),
    "audit": (
        "paceline audit http://127.0.0.1:8000 --plan",
        "paceline audit http://127.0.0.1:8000 --reference http://127.0.0.1:8001 --strict",
    ),
    "explain": (
        "paceline explain --prompt 'List three rivers, then list them again.'",
        "paceline explain chatcmpl-0123 --url http://127.0.0.1:8000",
    ),
    "profile": ("paceline profile smollm2-135m --batch 4 --trace step.json",),
    "synth": (
        "paceline synth app.yaml --preview 2",
        "paceline synth app.yaml --out sets/mine --rows 2000",
    ),
    "train": ("paceline train sets/mine --out runs/mine --epochs 4",),
    "distil": (
        "paceline distil sets/mine --student qwen2.5-coder-0.5b --out runs/small",
        "paceline distil sets/mine --student ./small --out runs/small --tasks math=math.jsonl",
        "paceline distil sets/mine --student ./small --out runs/small --drafter app.yaml",
    ),
    "evaluate": (
        "paceline evaluate smollm2-135m runs/mine/drafter mine=sets/mine demo",
        "paceline evaluate Qwen/Qwen3-8B ./drafter demo --engine http://127.0.0.1:8000",
    ),
    "doctor": ("paceline doctor http://127.0.0.1:8000 Qwen/Qwen3-8B ./drafter",),
    "drafter find": ("paceline drafter find Qwen/Qwen3-8B", "paceline drafter find smollm2-135m"),
    "drafter inspect": ("paceline drafter inspect runs/mine/drafter",),
    "drafter doctor": ("paceline drafter doctor smollm2-135m runs/mine/drafter",),
    "drafter convert": ("paceline drafter convert ./speculators-checkpoint ./z-lab-checkpoint",),
    "drafter costs": ("paceline drafter costs smollm2-135m runs/mine/drafter",),
    "drafter watch": ("paceline drafter watch runs/mine",),
    "drafter push": ("paceline drafter push runs/mine/drafter org/my-model-drafter --private",),
    "drafters list": ("paceline drafters list",),
    "drafters show": ("paceline drafters show app-2",),
    "drafters add": (
        "paceline drafters add app-1 runs/mine/drafter",
        "paceline drafters add app-2 hybrid:runs/mine/drafter --parent app-1",
    ),
    "drafters promote": (
        "paceline drafters promote app-2 --to live --reason 'a week of canary'",
        "paceline drafters promote app-2 --to live --server http://127.0.0.1:8000",
    ),
    "drafters retire": ("paceline drafters retire app-1",),
    "drafters rollback": ("paceline drafters rollback --server http://127.0.0.1:8000",),
    "drafters diff": ("paceline drafters diff app-1 app-2",),
    "drafters history": ("paceline drafters history app-2",),
    "autospec run": (
        "paceline autospec run ./store --traces ./traces --server http://127.0.0.1:8000",
        "paceline autospec run ./store --traces ./traces --server http://127.0.0.1:8000 --dry-run",
    ),
    "autospec status": ("paceline autospec status ./store",),
    "autospec explain": ("paceline autospec explain ./store --limit 3",),
    "autospec simulate": (
        "paceline autospec simulate --event season",
        "paceline autospec simulate --event drop --size 0.1 --runs 200 --policy policy.yaml",
    ),
    "autospec score": (
        "paceline autospec score smollm2-135m ./traces",
        "paceline autospec score smollm2-135m answers.jsonl --drafter none --drafter suffix",
    ),
    "corpus build": (
        "paceline corpus build corpora/shop ./traces --model smollm2-135m",
        "paceline corpus build corpora/team ./traces --model smollm2-135m --key team-a",
    ),
    "corpus merge": ("paceline corpus merge corpora/all replica-1/v3 replica-2/v5",),
    "corpus show": ("paceline corpus show corpora/shop",),
    "endpoint up": ("paceline endpoint up endpoint.yaml",),
    "endpoint status": ("paceline endpoint status endpoint.yaml",),
    "endpoint down": ("paceline endpoint down endpoint.yaml",),
    "engine up": (
        "paceline engine up vllm Qwen/Qwen3-8B --drafter runs/mine/drafter",
        "paceline engine up sglang Qwen/Qwen3-8B --drafter runs/mine/drafter --dry-run",
    ),
    "engine status": ("paceline engine status http://127.0.0.1:8000",),
    "engine metrics": ("paceline engine metrics http://127.0.0.1:8000 --watch",),
    "tune": (
        "paceline tune http://127.0.0.1:8000",
        "paceline tune http://127.0.0.1:8000 --prompts mine.jsonl --drafter runs/mine/drafter",
    ),
    "predict": (
        "paceline predict Qwen3-8B --hardware h100 --drafter mtp,alpha=0.75 --by-batch",
        "paceline predict Qwen3-8B --hardware h100 --batch 16 "
        "--drafter dflash:0.1,block=15,al=4,draft_length=15",
    ),
    "mock": ("paceline mock Qwen3-0.6B --acceptance-length 1,2,4 --batch 1,8",),
    "roofline fit": (
        "paceline roofline fit steps.csv --model Qwen3-8B --hardware h100 --out calibration.json",
    ),
    "roofline measure": ("paceline roofline measure smollm2-135m --out points.json",),
}


class Formatter(argparse.HelpFormatter):
    """Wraps each paragraph; keeps lines that are indented."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = text.split("\n\n")
        filled = [
            block if block.startswith((" ", "\n")) or "\n  " in block
            else textwrap.fill(" ".join(block.split()), width)
            for block in blocks
        ]  # fmt: skip
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """Ends at a wrong argument with what is wrong, what may be meant, and where help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nTry: {self.prog} --help\n")

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse as argparse does; an argument that this command does not know ends here, so that
        the error names the command."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument {unknown[0]}{self._hint(unknown[0])}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        if choices and value not in choices:
            guess = _guess(str(value), choices)
            expected = f"{' E' if guess else '; e'}xpected one of {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"got {value!r}{guess}{expected}")

    def set_usage(self) -> None:
        """Have the usage name what must be given, and not every option."""
        required, positional = list[str](), list[str]()
        for action in self._actions:
            name = str(action.metavar or action.dest)
            if action.option_strings:
                required += [action.option_strings[0], name] if action.required else []
            else:
                several = " ..." if action.nargs == "+" else ""
                positional.append(f"[{name}]" if action.nargs == "?" else name + several)
        self.usage = " ".join([self.prog, *positional, *required, "[options]"])

    def _hint(self, unknown: str) -> str:
        flags = [flag for action in self._actions for flag in action.option_strings]
        return _guess(unknown.partition("=")[0], flags) if unknown.startswith("-") else ""


def _guess(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, 1)
    return f"; did you mean {close[0]}?" if close else ""


def epilog(command: str) -> str:
    """Return the end of a command's help: command lines to start from, and pages."""
    lines = "\n".join(f"  {line}" for line in EXAMPLES.get(command, ()))
    name = command.partition(" ")[0]
    pages = [f"docs/{PAGES[name]}"] if name in PAGES else []
    shown = " and ".join([*pages, f"docs/cli.md#{name}"])
    return (f"examples:\n{lines}\n\n" if lines else "") + f"More: {shown}"


def overview(summaries: Mapping[str, str]) -> str:
    """Return the list of commands in groups, each with its line of help."""
    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns - 2)
    indent = " " * (NAME_WIDTH + 2)
    parts = []
    for title, names in GROUPS.items():
        parts.append(f"{title}:")
        parts += [
            textwrap.fill(
                f"  {name:<{NAME_WIDTH}}{summaries[name]}", width, subsequent_indent=indent
            )
            for name in names
        ]
        parts.append("")
    return "\n".join([*parts, "More: paceline COMMAND --help, and docs/cli.md"])
