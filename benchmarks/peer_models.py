"""Models in the formats of other engines, made once from a Hugging Face folder and kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

QUANTS = ("BF16", "Q8_0", "Q4_K_M", "Q4_0")
WEIGHTS = ("int8", "int4")


def gguf(model: str, quant: str, llama: Path, kept: Path) -> Path:
    """Return the GGUF file of `model`, one of QUANTS, that llama.cpp's own tools make.

    `llama` is the folder that prepare_peers.sh made.
    """
    target = kept / "gguf" / f"{Path(model).name}-{quant}.gguf"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    if quant == "BF16":
        convert = llama / "source/vendor/llama.cpp/convert_hf_to_gguf.py"
        command = [str(llama / "bin/python"), str(convert), model, "--outtype", "bf16"]
        _run([*command, "--outfile", str(unfinished)])
    else:
        whole = gguf(model, "BF16", llama, kept)
        _run([str(llama / "build/bin/llama-quantize"), str(whole), str(unfinished), quant])
    unfinished.rename(target)
    return target


def exported(model: str, weights: str, python: str, kept: Path) -> Path:
    """Return the folder with `model` for OpenVINO, its weights one of WEIGHTS; activations are
    quantised as it runs. `python` is of an environment with optimum-intel."""
    target = kept / "openvino" / f"{Path(model).name}-{weights}"
    if not (target / "openvino_model.xml").exists():
        options = ["--task", "text-generation-with-past", "--weight-format", weights]
        if weights == "int4":  # the usual group, or a smaller one where a width is no multiple
            options += ["--group-size", "128", "--group-size-fallback", "adjust"]
        command = str(Path(python).parent / "optimum-cli")
        _run([command, "export", "openvino", "-m", model, *options, str(target)])
    return target


def _run(command: list[str]) -> None:
    """Run a tool, and show what it printed only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
