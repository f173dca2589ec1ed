"""Templates of jobs: what ships is right, and what a user writes is refused by name where wrong."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from paceline.autospec.jobs import SHIPPED, JobTemplate
from paceline.autospec.jobs.template import TEMPLATES, fill, parse_cpus
from paceline.cli import build_parser, parse
from paceline.cli.train import TrainCommand
from paceline.core import InvalidRequest
from tests.docs.tables import check_page, field_table

VALUES = {
    "model": "smollm2-135m",
    "data": "/sets/app",
    "init": "/drafters/app-1",
    "epochs": "2",
    "gpus": "4",
}
# What SkyPilot's task format knows, of what a task of ours may use.
TASK_FIELDS = {
    "name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run",
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_template_makes_a_command(name: str, tmp_path: Path) -> None:
    template = JobTemplate.load(name)
    plan = template.plan(VALUES)
    values = plan.filled(tmp_path, "paceline-1")
    command = fill(plan.command, values)
    assert {"/sets/app", str(tmp_path), "smollm2-135m", "/drafters/app-1", "2"} <= {*command}
    assert fill(plan.best, values)[0] == f"{tmp_path}/drafter"
    assert (fill(plan.cancel, values) == []) is (name in ("subprocess", "torchrun"))
    for word in command:  # scripts that the template names are shipped
        assert str(TEMPLATES) not in word or Path(word).is_file(), word


@pytest.mark.parametrize("name", ["subprocess", "torchrun", "slurm"])
def test_the_training_command_of_a_template_parses(name: str, tmp_path: Path) -> None:
    plan = JobTemplate.load(name).plan({**VALUES, "init": None})
    command = fill(plan.command, plan.filled(tmp_path / "out", "paceline-1"))
    start = command.index("train")
    parsed = parse(command[start:])
    assert isinstance(parsed, TrainCommand) and parsed.init is None
    assert (parsed.out, parsed.epochs) == (str(tmp_path / "out"), 2)


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """Write programs that stand in for a cluster's; return the environment that has them."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def said(command: list[str], environment: dict[str, str]) -> list[str]:
    """Run a command; return what it prints, line by line."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.mark.parametrize("nodes", [1, 2])
def test_slurm_starts_a_process_on_every_gpu(nodes: int, tmp_path: Path) -> None:
    plan = JobTemplate.load("slurm").plan(VALUES)
    command = fill(plan.command, plan.filled(tmp_path / "out", "paceline-1"))
    script = command.index(str(TEMPLATES / "slurm.sh"))
    assert option(command[:script], "--gpus-per-node") == "4"
    environment = programs(
        tmp_path / "bin",
        scontrol='[ "$*" = "show hostnames gpu[7-8]" ] && printf "gpu7\\ngpu8\\n"',
        srun='printf "%s\\n" "$@"',
    )
    environment |= {"SLURM_JOB_NODELIST": "gpu[7-8]", "SLURM_JOB_NUM_NODES": str(nodes)}
    words = said(["bash", *command[script:]], environment | {"SLURM_JOB_ID": "123456"})
    assert (option(words, "--ntasks"), option(words, "--ntasks-per-node")) == (str(nodes), "1")
    start = words.index("train")
    assert words[start - 2 : start] == ["-m", "paceline.cli"]
    torchrun = get_args_parser().parse_args(
        [*words[words.index("--nnodes") : start - 2], "-m", "x"]
    )
    assert (torchrun.nnodes, torchrun.nproc_per_node) == (str(nodes), "4")
    assert (torchrun.rdzv_endpoint, torchrun.rdzv_id) == ("gpu7:23456", "123456")
    assert words[start:] == command[command.index("train") :]


@pytest.mark.parametrize("init", ["drafter", None])
def test_skypilot_trains_on_every_gpu_with_or_without_a_drafter(
    init: str | None, tmp_path: Path
) -> None:
    """The script launches the task, whose own script then runs on the rented machine."""
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "config.json").write_text("{}")
    given = None if init is None else str(tmp_path / init)
    plan = JobTemplate.load("skypilot").plan({**VALUES, "init": given})
    out, home = tmp_path / "out", tmp_path / "home"
    home.mkdir()
    environment = programs(
        tmp_path / "bin",
        # What lies in INIT is copied, as file_mounts says.
        sky='[ $1 = down ] || { printf "%s\\n" "$@"; '
        'for word; do case $word in INIT=*) cp -r "${word#INIT=}" "$HOME/init";; esac; done; }',
        rsync=f"mkdir -p {out}/drafter",
        torchrun='printf "%s\\n" "$@"',
    ) | {"HOME": str(home), "TMPDIR": str(tmp_path)}
    before = {*tmp_path.iterdir()}
    words = said(fill(plan.command, plan.filled(out, "paceline-1")), environment)
    assert {*tmp_path.iterdir()} - before == {out}, "a folder is left behind"
    assert option(words, "--cluster") == "paceline-1"
    envs = dict(word.split("=", 1) for word in words if "=" in word)
    assert envs["DATA"] == VALUES["data"] and Path(words[-1]).name == "skypilot-task.yaml"
    task = yaml.safe_load(Path(words[-1]).read_text())
    there = environment | envs | {"SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    run = said(["bash", "-euc", task["run"]], there)
    assert option(run, "--nproc-per-node") == "8"
    parsed = parse_unchecked(run[run.index("train") :])
    assert parsed["init"] == (None if init is None else f"{home}/init")
    assert (parsed["sets"], parsed["out"]) == ([f"{home}/data"], f"{home}/out")
    assert (parsed["model"], parsed["epochs"]) == ("smollm2-135m", 2.0)


def parse_unchecked(words: list[str]) -> dict[str, object]:
    """Return the options of a command as they are written, whether its files are there or not."""
    return {"init": None} | vars(build_parser().parse_args(words))


def test_every_file_of_the_templates_is_of_one_that_ships() -> None:
    stems = {path.name.partition(".")[0].partition("-")[0] for path in TEMPLATES.iterdir()}
    assert stems == {*SHIPPED}


@pytest.mark.parametrize("name", ["slurm.sh", "skypilot.sh"])
def test_a_shipped_script_is_bash(name: str) -> None:
    subprocess.run(["bash", "-n", TEMPLATES / name], check=True)


def test_the_task_of_skypilot_gets_what_its_script_gives() -> None:
    task = yaml.safe_load((TEMPLATES / "skypilot-task.yaml").read_text())
    assert task.keys() <= TASK_FIELDS
    script = (TEMPLATES / "skypilot.sh").read_text()
    words = shlex.split(script, comments=True)
    given = {
        words[place + 1].partition("=")[0] for place, word in enumerate(words) if word == "--env"
    }
    required = {name for name, value in task["envs"].items() if value is None}
    assert given == required
    for place in task["file_mounts"].values():
        assert place.strip("${}") in required


def test_the_page_has_every_field() -> None:
    check_page("autospec.md", field_table(JobTemplate))


def test_an_optional_part_goes_with_its_value() -> None:
    words = ("train", ("--init", "{init}"), "{{literal}}")
    assert fill(words, {"init": "x"}) == ["train", "--init", "x", "{literal}"]
    assert fill(words, {"init": None}) == ["train", "{literal}"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": []}, "command: got .*expected a program and its arguments"),
        ({"command": ["a", "{b c}"]}, r"command: got '{b c}'; expected places as {data}"),
        ({"command": ["a", "{"]}, r"command: got '{'; expected places as {data}"),
        ({"command": ["a"], "nice": 20}, "nice: got 20; expected a whole number from 0 to 19"),
        ({"command": ["a"], "cpus": "0-x"}, "cpus: got '0-x'; expected numbers of cores"),
        ({"command": ["a"], "budget_cost": 3.0}, "budget_cost: got 3.0; expected cost_per_hour"),
        ({"command": ["a"], "budget_seconds": 0}, "budget_seconds: got 0; expected"),
        ({"command": ["a"], "comand": []}, "comand: unknown field; did you mean command"),
        ({}, "command: missing"),
    ],
)
def test_a_wrong_template_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        JobTemplate.read(fields)


def test_a_place_without_a_value_is_refused_by_name() -> None:
    template = JobTemplate.read({"command": ["train", "{data}", "{colour}"]})
    with pytest.raises(InvalidRequest, match=r"{colour}.*expected places among .*budget_minutes"):
        template.plan({"data": "x"})
    with pytest.raises(InvalidRequest, match=r"data: got null; expected a value for '{data}'"):
        template.plan({"colour": "x"})


def test_a_template_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="template: got 'slurn'; expected one of subprocess"):
        JobTemplate.load("slurn")


def test_a_cost_makes_a_budget(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("command: [train]\ncost_per_hour: 2\nbudget_cost: 1\nbudget_seconds: 7200\n")
    template = JobTemplate.load(str(path))
    assert template.plan({}).seconds == 1800
    assert template.plan({}, seconds=60).seconds == 60
    assert template.plan({}, cost=0.5).seconds == 900
    with pytest.raises(InvalidRequest, match=r"cost: got 1.0; expected a template with cost_per"):
        JobTemplate.read({"command": ["a"]}).plan({}, cost=1.0)


def test_cores_are_read_as_people_write_them() -> None:
    assert parse_cpus("0-2,5, 7") == [0, 1, 2, 5, 7]
