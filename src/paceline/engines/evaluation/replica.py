"""A replica that an evaluation starts here: a supervised process, and the memory that is left."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from paceline.bench.load.server_process import free_port
from paceline.engine.machine import available_memory
from paceline.engines.client import EngineClient, EngineError
from paceline.engines.kind import EngineKind, LaunchPlan
from paceline.engines.process import EngineProcess
from paceline.evaluate.measure import Progress

ENDING_SECONDS = 5.0  # until a process that broke off is seen to have ended


class ProcessReplica:
    """An engine on a free port of this machine, which answers. Raises EngineError with the end of
    its log where it does not come up."""

    client: EngineClient

    def __init__(
        self, kind: EngineKind, plan: LaunchPlan, progress: Progress = lambda what: None
    ) -> None:
        what = "without a drafter" if plan.drafter is None else "with the drafter"
        progress(f"starting {kind.name} {what}")
        self._process = EngineProcess(
            kind,
            replace(plan, port=free_port()),
            on_progress=lambda told: progress(f"{kind.name} {what}: {told}"),
        )
        try:
            self.client = self._process.wait_ready()
        except BaseException:
            self._process.stop()
            raise

    @property
    def pid(self) -> int:
        """The process id of the engine itself."""
        return self._process.pid

    def failure(self) -> str | None:
        """Return how it ended, with the end of its output; None while it runs."""
        end = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < end:
            try:
                self._process.check()
            except EngineError as error:
                return str(error)
            time.sleep(0.1)
        return None

    def stop(self) -> None:
        """End it, with all its processes."""
        self.client.close()
        self._process.stop()


def free_memory(on_cpu: bool) -> int:
    """Return the bytes that are free where an engine runs: of the first GPU, or of this machine."""
    if on_cpu or not torch.cuda.is_available():
        return available_memory()
    free, _ = torch.cuda.mem_get_info()
    return int(free)
