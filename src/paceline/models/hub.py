"""The Hugging Face hub: what its ids look like, a model's config alone, and errors in a line.

Addresses, tokens, cache and offline mode are `huggingface_hub`'s own (HF_ENDPOINT, HF_TOKEN,
HF_HUB_CACHE, HF_HUB_OFFLINE). This module imports no torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.core import CacheError, ModelError
from paceline.core.names import find_name, guesses, listed_spellings

SHA256 = re.compile(r"[0-9a-f]{64}")
SHORT = "Consistency check failed"  # what huggingface_hub says of a file of another size
CLOCKS_DIFFER = 60.0  # seconds, of a file server's and this machine's
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def fetch_config(repo_id: str) -> Path:
    """Fetch a model's config.json, or find it in the hub's own cache; no weights come along.
    Raises ModelError saying what is to blame, and CacheError."""
    import huggingface_hub  # here, since most predictions fetch nothing

    huggingface_hub.logging.set_verbosity_error()  # where it fails, one line says why
    with hub_errors(repo_id, None, "a folder, a config.json, a GGUF file or a listed name"):
        cached = huggingface_hub.try_to_load_from_cache(repo_id, "config.json")
        if not isinstance(cached, str):
            # tells at once that there is no network; a first download would try for a minute
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repo_id, "config.json"))
        return Path(huggingface_hub.hf_hub_download(repo_id, "config.json"))


def check_arrived(repo_id: str, folder: Path, since: float) -> None:
    """Compare the large files that came since then, in seconds of the epoch, with the SHA-256 that
    the hub states, which is the name of the file in its cache. Raises ModelError for another one,
    which is deleted."""
    for path in sorted(folder.iterdir()):
        kept = path.resolve()
        if not SHA256.fullmatch(kept.name) or kept.stat().st_mtime < since - CLOCKS_DIFFER:
            continue
        with open(kept, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != kept.name:
            path.unlink()
            kept.unlink(missing_ok=True)
            raise ModelError(
                f"{repo_id}: {path.name} arrived damaged (SHA-256 {digest[:12]}, where the hub has "
                f"{kept.name[:12]}) and is deleted; the same command fetches it again"
            )


@contextmanager
def hub_errors(repo_id: str, revision: str | None, instead: str) -> Iterator[None]:
    """Raise ModelError saying why a repository could not be fetched, and CacheError where the hub's
    cache cannot be written. `instead` is what a user may give where no hub can be reached."""
    import httpx  # these here, since most starts fetch nothing
    import huggingface_hub
    from huggingface_hub import errors

    at = f" at revision {revision!r}" if revision else ""
    listed = listed_spellings()
    is_listed = find_name("model", repo_id, listed, whole=True) is not None
    likely = "" if is_listed else " or ".join(guesses(repo_id, listed))
    hint = f"; did you mean {likely}?" if likely else ""
    try:
        yield
    except errors.HFValidationError as error:
        raise ModelError(
            f"{repo_id}: no such folder or file, and no hub id either; give a local folder or GGUF "
            "file, a hub id (org/name), or a name from the catalogue"
        ) from error
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo_id}: access is gated; accept its terms on the hub, then `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repo_id}: the hub has no revision {revision!r} of it") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{repo_id}: the hub knows no such model (or it is private and no token is set){hint}"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        httpx.TransportError,
        ConnectionError,
    ) as error:
        offline = huggingface_hub.constants.HF_HUB_OFFLINE
        why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached (no network?)"
        raise ModelError(
            f"{repo_id}: not in the local cache{at}, and {why}; give {instead}{hint}"
        ) from error
    except errors.EntryNotFoundError as error:
        if "config.json" not in str(error):
            told = " ".join(str(error).split())
            raise ModelError(f"{repo_id}: the hub lists a file that it lacks: {told}") from error
        raise ModelError(
            f"{repo_id}: the repository has no config.json, which says what a model is; "
            "of a repository of GGUF files, fetch one and give its path"
        ) from error
    except errors.HfHubHTTPError as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{repo_id}: the hub refused{at}: {reason}") from error
    except OSError as error:
        if SHORT in str(error):
            told = " ".join(str(error).split())
            raise ModelError(
                f"{repo_id}: a file arrived damaged ({told}); the same command fetches it again"
            ) from error
        raise CacheError(
            f"{repo_id}: the hub's cache cannot be used ({error}); free space there, or set "
            "HF_HOME to a folder that this user can read and write"
        ) from error
