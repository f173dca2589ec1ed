"""A trained drafter on the hub: its files with their model card, in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest, ModelError
from paceline.drafters.found import learnt_sets
from paceline.drafters.shipped import PROVENANCE
from paceline.models.hub import HUB_ID
from paceline.models.json_files import read_json

CARD = "README.md"
FILES = (CARD, "config.json", "model.safetensors", "paceline.json", PROVENANCE)


def check_publishable(folder: Path, repo_id: str, *, user_data: bool = False) -> None:
    """Raise InvalidRequest for a folder that `paceline train` has not written whole, for a word
    that is no hub id, and for weights that have learnt from what users said, or whose target was
    distilled from that, unless `user_data` says that these may be published."""
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        expected = f"the drafter of a training run; {', '.join(missing)} is missing"
        raise InvalidRequest("drafter", str(folder), expected)
    if not HUB_ID.fullmatch(repo_id):
        raise InvalidRequest("repository", repo_id, 'a hub id, as "org/name"')
    record = read_json(folder / PROVENANCE)
    private = [name for name, fact in learnt_sets(record) if fact.get("user_data")]
    private += _taught_the_target(record)
    if private and not user_data:
        expected = (
            f"a drafter that has learnt nothing from users, or --user-data; {', '.join(private)} "
            "is what users said, and weights may give it away"
        )
        raise InvalidRequest("drafter", str(folder), expected)


def _taught_the_target(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sets of users' data that targets were distilled from: the drafter's, and those of
    the drafters that its training went on from. One that does not say counts as well."""
    origin, begun = record.get("origin"), record.get("init")
    if isinstance(origin, Mapping):
        yield from origin.get("user_data", ["the set that its target was distilled from"])
    making = begun.get("made") if isinstance(begun, Mapping) else None
    if isinstance(making, Mapping):
        yield from _taught_the_target(making)


def publish(folder: Path, repo_id: str, *, private: bool) -> str:
    """Make a model repository where there is none, and commit the drafter's files to it. Return
    the address of the commit. Raises ModelError saying what is to blame."""
    import huggingface_hub  # here, since most commands need no hub

    huggingface_hub.logging.set_verbosity_error()
    hub = huggingface_hub.HfApi()
    with _told(repo_id):
        hub.create_repo(repo_id, private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=list(FILES),
            commit_message="A drafter by paceline train",
        )
    return str(commit.commit_url)


@contextmanager
def _told(repo_id: str) -> Iterator[None]:
    """Raise ModelError saying why nothing could be published."""
    import httpx
    from huggingface_hub import errors

    try:
        yield
    except errors.LocalTokenNotFoundError as error:
        raise ModelError(
            f"{repo_id}: no token for the hub; `hf auth login`, or HF_TOKEN"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(f"{repo_id}: not published, since HF_HUB_OFFLINE is set") from error
    except errors.HfHubHTTPError as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{repo_id}: the hub refused: {reason}") from error
    except (httpx.TransportError, ConnectionError) as error:
        raise ModelError(f"{repo_id}: the hub cannot be reached ({error})") from error
