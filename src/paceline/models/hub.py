"""Models from the Hugging Face hub, by id."""

from __future__ import annotations

from pathlib import Path

import httpx
import huggingface_hub
from huggingface_hub import errors

from paceline.core import CacheError, ModelError

# Weights as safetensors, config, tokenizer and chat template; a drafter's own mask embedding.
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "mask_embedding.pt"]
UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights


def download(repo_id: str, revision: str | None = None) -> Path:
    """Fetch (or find in the hub's own cache) a model and return its folder. Raises ModelError
    saying what is to blame, and CacheError where the hub's cache cannot be written."""
    at = f" at revision {revision!r}" if revision else ""
    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
        )
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
            f"{repo_id}: the hub knows no such model (or it is private and no token is set)"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        httpx.TransportError,
        ConnectionError,
    ) as error:
        raise ModelError(
            f"{repo_id}: not in the local cache{at}, and the hub cannot be reached (no network?); "
            "give a local folder or GGUF file, or a name from the catalogue"
        ) from error
    except errors.HfHubHTTPError as error:
        raise ModelError(f"{repo_id}: the hub refused{at}: {error}") from error
    except OSError as error:
        raise CacheError(
            f"{repo_id}: the hub's cache cannot be used ({error}); free space there, or set "
            "HF_HOME to a folder that this user can read and write"
        ) from error
    return Path(folder)
