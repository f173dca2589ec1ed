"""`paceline endpoint`: replicas of engines behind Envoy are started, looked at and ended."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict
from rich.console import Console

from paceline.cli.engine import folder_of, signalled
from paceline.cli.option import Argument
from paceline.cli.options import Positional
from paceline.cli.show import progress, stderr_console
from paceline.core import InvalidRequest, PacelineError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between

if TYPE_CHECKING:
    from paceline.endpoint.description import ManagedEndpoint
    from paceline.endpoint.place import EndpointPlace
    from paceline.endpoint.run import RunningEndpoint
    from paceline.endpoint.state import EndpointEvent

Folder = Annotated[Path, Strict(False), Argument(metavar="FOLDER")]
Seconds = Annotated[float, Between(0, 86_400)]
PLACE_HELP = "the endpoint's file, as endpoint.yaml, or its folder"
GRACE_HELP = "most seconds that running requests get at the end"
LOOK_SECONDS = 0.25


@checked
class EndpointUpCommand:
    """Start Envoy and the replicas of an endpoint, and stay until it ends.

    Says what happens as it happens: replicas that come up, fail and leave, and changes of routes.
    `paceline autospec run --endpoint` steers it meanwhile. Ctrl-C or SIGTERM ends everything once
    running requests are finished; a second Ctrl-C ends it at once. Where this command is killed,
    Envoy and the replicas go on serving for `times.alone` seconds: started again, it finds them;
    otherwise they end too.
    """

    file: Positional = about("the endpoint's file (YAML)")
    folder: Folder | None = about(
        "where its state, sockets and logs lie", None, "beside the file: endpoint/ of endpoint.yaml"
    )
    grace: Seconds = about(GRACE_HELP, 30.0)

    def run(self) -> int:
        from paceline.endpoint.run import RunningEndpoint

        place, endpoint, console = self.place(), self.endpoint(), stderr_console()
        started = time.monotonic()

        def tell(event: EndpointEvent) -> None:
            text = f"{time.strftime('%H:%M:%S', time.localtime(event.time))} {event.text}"
            console.print(text, soft_wrap=True, markup=False)

        with signalled():
            running = RunningEndpoint(place, endpoint, tell)
            try:
                begin(running, console)
                console.print(ready(running, time.monotonic() - started), soft_wrap=True)
                while True:
                    time.sleep(LOOK_SECONDS)
            except KeyboardInterrupt:
                self.end(running, console)
            except BaseException:
                running.end(0)
                raise
        return 0

    def place(self) -> EndpointPlace:
        """Return where the endpoint lies. Raises InvalidRequest."""
        from paceline.endpoint.place import EndpointPlace

        if self.folder is not None:
            return EndpointPlace(self.folder.expanduser())
        try:
            return EndpointPlace.of(self.file)
        except InvalidRequest as error:
            raise InvalidRequest("file", self.file, error.expected) from None

    def endpoint(self) -> ManagedEndpoint:
        """Return what the file says, with the folder of a target that has a name."""
        from paceline.endpoint.description import ManagedEndpoint

        endpoint = ManagedEndpoint.from_yaml(Path(self.file).expanduser())
        if endpoint.engine == "paceline":
            return endpoint
        return endpoint.model_copy(update={"target": folder_of(endpoint.target)})

    def end(self, running: RunningEndpoint, console: Console) -> None:
        """End everything once requests are finished, or at once at another Ctrl-C."""
        console.print("ending once running requests are finished; Ctrl-C again ends it at once")
        try:
            running.end(self.grace)
        except KeyboardInterrupt:
            running.end(0)


@checked
class EndpointStatusCommand:
    """Say what an endpoint is at the moment: its replicas, who gets which, and who steers it.

    Exits with 1 where no request is answered.
    """

    place: Positional = about(PLACE_HELP)
    json: bool = about("print it as JSON", False)

    def run(self) -> int:
        from paceline.cli.endpoint_show import print_status
        from paceline.endpoint.place import EndpointPlace

        place = EndpointPlace.of(self.place)
        status = place.status()
        if self.json:
            told = {
                "listen": status.endpoint.listen,
                "engine": status.endpoint.engine,
                "target": status.endpoint.target,
                "serves": status.serves,
                "envoy": status.envoy,
                "controller": status.controller,
                "steer": place.address,
                "replicas": [asdict(each) for each in status.replicas.values()],
                "spare_slots": status.spare,
                "routes": None if status.routes is None else status.routes.model_dump(),
            }
            print(json.dumps(told, indent=1))
        else:
            print_status(status)
        return 0 if status.serves else 1


@checked
class EndpointDownCommand:
    """End an endpoint: Envoy takes no more requests, and the replicas end with their last one.

    Ends what a killed `paceline endpoint up` has left, too.
    """

    place: Positional = about(PLACE_HELP)
    grace: Seconds = about(GRACE_HELP, 30.0)

    def run(self) -> int:
        from paceline.endpoint.place import EndpointPlace

        EndpointPlace.of(self.place).end(self.grace)
        stderr_console().print("Envoy and all replicas have ended")
        return 0


def begin(running: RunningEndpoint, console: Console) -> None:
    """Bring replicas up, and show what their logs tell meanwhile. Where others serve already, one
    that does not come up is named, and no error."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(running.begin)
        try:
            show_loading(running, future, console)
            future.result()
        except KeyboardInterrupt:
            running.replicas.interrupt()
            raise
        except PacelineError as error:
            if not any(each.is_ready for each in running.replicas.loaded().values()):
                raise
            console.print(str(error), style="yellow", soft_wrap=True, markup=False)


def show_loading(running: RunningEndpoint, future: Future[None], console: Console) -> None:
    """Show what the logs of loading replicas tell until all are up."""
    bars, told = progress(), ""
    with bars:
        task = bars.add_task("starting", total=None)
        while not future.done():
            text = "; ".join(f"{name}: {text}" for name, text in running.loading().items())
            if text and text != told:
                told = text
                bars.update(task, description=text)
                if not console.is_terminal:
                    console.print(text, soft_wrap=True, markup=False)
            time.sleep(LOOK_SECONDS)


def ready(running: RunningEndpoint, seconds: float) -> str:
    """Say that an endpoint is up, and what serves there."""
    endpoint, replicas = running.replicas.endpoint, running.replicas
    names = ", ".join(name for name, each in replicas.loaded().items() if each.is_ready)
    serving = (
        f"{endpoint.engine} serves {endpoint.target} with {names}"
        if names
        else "no replica yet: the first one that is loaded and routed to serves"
    )
    return f"ready at {replicas.url} after {seconds:.1f} s: {serving}; Ctrl-C ends it"
