"""Run the tables of docs/benchmarks.md for one model, one after another, and keep what each prints.

`make bench` calls it. It takes hours, so it can be stopped and started again: what ended well is
kept in a folder of this commit, machine and model, and is not run again there. A table that fails
is named at the end and does not stop the others.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness import HERE, commit, machine

from paceline.drafters.shipped import shipped_folder
from paceline.models.catalog import pull


class Table(NamedTuple):
    """One run of a script: its name, which is that of the file with what it prints, and `command`
    after the interpreter."""

    name: str
    command: tuple[str, ...]


def tables(
    model: str,
    folder: str,
    build: Path,
    vllm: str | None,
    openvino: str | None,
    llama: str | None,
    small: str | None,
) -> list[Table]:
    """Return all tables in order; those that want what is None are left out, and those of the
    shipped drafter where none is shipped for `model`.

    `folder` holds the weights of `model`, `build` what tables leave to others; `vllm` and
    `openvino` are interpreters with these engines, `llama` is a folder of prepare_peers.sh, `small`
    is a draft model.
    """
    found: list[Table] = []
    peer = ("--vllm", vllm) if vllm else ()

    def add(script: str, *arguments: str, name: str = "") -> None:
        found.append(Table(name or script, (str(HERE / f"{script}.py"), *arguments)))

    def each(script: str, words: str, *arguments: str) -> None:
        for word in words.split():
            add(script, word, *arguments, name=f"{script}-{word}")

    overfitted = str(build / "overfitted")
    add("kernels", folder, "--contexts", "128,512,4096,16384")
    add("decode", folder, *peer)
    each("int8", "speed quality", folder)
    add("host_time", model)
    add("starts", model)
    add("starts", model, "--serve=--quantize int8", name="starts-int8")
    each("speculation", "replay overhead drafters", folder)
    each("serving", "throughput prefill join http log memory", folder, *peer)
    add("prompt_share", model)
    add("options", model)
    add("capture", model)
    add("beside_training", model)
    each("autospec", "swap memory corpus", model)
    if small:
        each("speculation", "draft-model", model, small)
        each("int8", "acceptance", model, small)
    if openvino:
        add("int8_peers", folder, "--openvino", openvino, *peer)
    given = {"--small": small, "--llama": llama, "--openvino": openvino, "--vllm": vllm}
    peers = [word for option, value in given.items() if value for word in (option, value)]
    each("peers", "alone at-once end-to-end", folder, *peers)
    each("structured", "answers cost", model)
    add("overfit_drafter", model, overfitted, "--steps", "400")
    if vllm:
        add("block_drafts_peers", folder, overfitted, *peer)
    each("block_drafts", "speedup draws", model, overfitted)
    default = ("--policy", "throughput")
    add("block_drafts", "speedup", model, overfitted, *default, name="block_drafts-policy")
    add("calibration", model, overfitted, "suffix")
    each("block_drafts", "cost context", model)
    if shipped_folder(model):
        add("draft_trees", model, model)
        add("draft_trees", model, model, *default, name="draft_trees-policy")
        add("draft_windows", model, model)
    cells = str(build / "never_slower_auto.jsonl")
    each("never_slower", "run", model, "--out", cells)
    return found


def run(tables: Sequence[Table], kept: Path, *, again: bool = False) -> list[str]:
    """Run the tables whose text is not in `kept` yet, or all of them `again`; return the names of
    those that failed.

    What one has printed is in NAME.failed until it ends well, then in NAME.txt. The first lines are
    its command and machine.
    """
    failed = []
    kept.mkdir(parents=True, exist_ok=True)
    for table in tables:
        text, bad = kept / f"{table.name}.txt", kept / f"{table.name}.failed"
        if text.exists() and not again:
            print(f"{table.name}: kept in {text}", flush=True)
            continue
        start = time.perf_counter()
        with bad.open("w") as out:
            script, *arguments = table.command
            print(Path(script).name, *arguments, file=out)
            print(machine(), file=out, flush=True)
            done = subprocess.run(
                [sys.executable, *table.command], stdout=out, stderr=subprocess.STDOUT
            )
        minutes = (time.perf_counter() - start) / 60
        if done.returncode:
            failed.append(table.name)
            print(f"{table.name}: FAILED after {minutes:.1f} min, see {bad}", flush=True)
        else:
            bad.rename(text)
            print(f"{table.name}: {minutes:.1f} min, in {text}", flush=True)
    return failed


def as_page(kept: Path, names: Sequence[str]) -> str:
    """Return a page of the tables of these names that are kept, each below its command, its date
    and its machine."""
    sections = []
    for name in names:
        if (text := kept / f"{name}.txt").exists():
            command, where, *printed = text.read_text().splitlines()
            lines = "\n".join(printed).strip()
            sections.append(f"## {name}\n\n`benchmarks/{command}` ({where})\n\n{lines}\n")
    return "\n".join(["# Tables of one commit\n", *sections])


def place(model: str) -> Path:
    """Return the folder, below build/bench, of this machine, commit and model."""
    where = machine().split(", ", 1)[1]  # without the date
    return Path("build/bench") / re.sub(r"[^\w.+-]+", "_", f"{where}_{Path(model).name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="what `paceline serve` takes")
    parser.add_argument("--small", help="a draft model for it")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vllm")
    parser.add_argument(
        "--openvino", metavar="PYTHON", help="of one with openvino-genai and optimum-intel"
    )
    parser.add_argument("--llama", metavar="FOLDER", help="that prepare_peers.sh made")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="tables to run; default: all")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the kept tables there too")
    parser.add_argument("--list", action="store_true", help="print the names of the tables")
    args = parser.parse_args()
    kept, folder = place(args.model), str(pull(args.model))
    if args.page and not args.page.parent.is_dir():
        parser.error(f"--page: {args.page.parent} is no folder")
    found = tables(args.model, folder, kept, args.vllm, args.openvino, args.llama, args.small)
    names = [table.name for table in found]
    if args.list:
        print(*names, sep="\n")
        return
    if unknown := set(args.only or ()) - set(names):
        parser.error(f"--only: no table {sorted(unknown)[0]!r}; there are {', '.join(names)}")
    chosen = [table for table in found if not args.only or table.name in args.only]
    changed = commit().endswith("+")
    if changed:
        print("files differ from the commit, so no kept table is of this code: all run again")
    failed = run(chosen, kept, again=changed)
    if args.page:
        args.page.write_text(as_page(kept, [table.name for table in chosen]))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
