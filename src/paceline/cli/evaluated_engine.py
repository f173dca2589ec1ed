"""What `paceline evaluate --engine` means: a server at an address, or an engine to start here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from paceline.cli import options
from paceline.core import InvalidRequest, ModelError
from paceline.core.names import local_path
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.cli.evaluate import EvaluateCommand
    from paceline.engines.evaluation import EngineEvaluation, Servers
    from paceline.evaluate.measure import Progress
    from paceline.evaluate.result import EvaluationSettings

STARTED = ("vllm", "paceline")  # engines that the command can start


def check_served(
    served: str,
    reference: str | None,
    engine_args: Sequence[str],
    warm: bool,
    engine: EngineConfig,
) -> None:
    """Raise InvalidRequest for options that do not go with --engine."""
    from paceline.bench.load.address import ServerAddress

    if warm:
        expected = "no --warm beside --engine: what a server remembers is its own business"
        raise InvalidRequest("warm", True, expected)
    if served in STARTED:
        if reference is not None:
            expected = "no --reference beside an engine that is started here, with its own"
            raise InvalidRequest("reference", reference, expected)
        _refuse_engine_options(engine, allowed=("max_model_len",))
        return
    if engine_args:
        expected = f"--engine {' or '.join(STARTED)} beside it: a running server has its own"
        raise InvalidRequest("engine_arg", list(engine_args), expected)
    _refuse_engine_options(engine)
    for field, url in (("engine", served), ("reference", reference)):
        if url is None:
            continue
        try:
            ServerAddress.parse(url)
        except InvalidRequest as error:
            expected = f"{error.expected}, or {' or '.join(STARTED)}"
            raise InvalidRequest(field, url, expected) from None


def open_servers(command: EvaluateCommand, served: str, progress: Progress) -> Servers:
    """Connect to the servers of an evaluation, or start them. Raises InvalidRequest and
    EngineError."""
    from paceline.engines import connect
    from paceline.engines.evaluation import RunningServers

    if served in STARTED:
        return started_servers(command, served, progress)
    engine = connect(served, command.api_key)
    reference = command.reference
    plain = None if reference is None else connect(reference, command.api_key)
    return RunningServers(engine, plain)


def started_servers(command: EvaluateCommand, served: str, progress: Progress) -> Servers:
    """Start an engine with the drafter; a replica without it follows when it is asked."""
    from paceline.drafters.spec import network_folder, parse_spec
    from paceline.engines import KINDS
    from paceline.engines.evaluation import Replicas
    from paceline.engines.evaluation.replica import ProcessReplica, free_memory
    from paceline.engines.kind import LaunchPlan
    from paceline.engines.programs import find_program
    from paceline.models.catalog import pull

    spec = parse_spec(command.drafter)
    program = find_program(served)
    plan = LaunchPlan(
        target=str(pull(command.model)),
        drafter=None if spec.value is None else network_folder(spec),
        kind=None if spec.value is not None else spec.kind,
        max_model_len=command.engine.max_model_len,
        extra=tuple(command.engine_arg),
        program=program,
    )

    def start(speculative: bool) -> ProcessReplica:
        wanted = plan if speculative else replace(plan, drafter=None, kind=None)
        return ProcessReplica(KINDS[served], wanted, progress)

    return Replicas(start, lambda: free_memory(on_cpu=program.cpu))


def evaluation_of(
    servers: Servers,
    model: str,
    drafter: str,
    sets: Sequence[str],
    settings: EvaluationSettings,
) -> EngineEvaluation:
    """Return an evaluation that is ready to run."""
    from paceline.drafters.spec import label, parse_spec
    from paceline.engines.evaluation import EngineEvaluation
    from paceline.engines.evaluation.prompts import PromptSource
    from paceline.evaluate.sets import parse_sets

    return EngineEvaluation(
        servers,
        PromptSource.of(servers.engine, model),
        label(parse_spec(drafter)),
        parse_sets(sets),
        settings,
        version=_version(drafter),
    )


def _version(drafter: str) -> str:
    """Return the version of a drafter's checkpoint where it lies here."""
    from paceline.drafters.shipped import drafter_folder, shipped_folder
    from paceline.drafters.spec import parse_spec
    from paceline.models.dflash.checkpoint import load_checkpoint

    word = parse_spec(drafter).value
    try:
        if word is not None and (shipped_folder(word) or local_path(word, "drafter").is_dir()):
            return load_checkpoint(drafter_folder(word)).version
    except ModelError:
        pass  # the engine may well read it
    return "unknown"


def _refuse_engine_options(engine: EngineConfig, allowed: Sequence[str] = ()) -> None:
    stated, plain = asdict(engine), asdict(options.DEFAULTS)
    for field, value in stated.items():
        if field not in ("model", "drafter", *allowed) and value != plain[field]:
            expected = "no such option with --engine: the engine has its own"
            raise InvalidRequest(field, value, expected)
