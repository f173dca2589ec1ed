"""The tokenizer of a model's folder, read from tokenizer.json by the `tokenizers` library alone.

transformers would read the same file, but takes longer to be imported than all else that a start
does. Only folders without a tokenizer.json need it: it converts their older files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend

from paceline.core import ModelError
from paceline.models.chat_template import Message, render, variables_of
from paceline.models.json_files import read_optional_json

FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
NAMED_TEMPLATE = Path("additional_chat_templates") / "tool_use.jinja"
LEGACY = ("chat_template.json", "special_tokens_map.json")
# what transformers makes a tokenizer.json of
VOCABULARIES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# what a template is given for every conversation, beside the special tokens
GIVEN = {"messages", "tools", "documents", "add_generation_prompt"}
MORE_SPECIAL = ("extra_special_tokens", "additional_special_tokens")
UNFINISHED = "�"  # what a decoder prints for bytes that are not a whole character yet
FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")


class Encoded(dict[str, list[int]]):
    """{"input_ids": the token ids of a text}, which are an attribute as well."""

    @property
    def input_ids(self) -> list[int]:
        return self["input_ids"]


class Tokenizer:
    """Text to token ids and back, special tokens and the chat template of a model.

    Names are those of transformers' tokenizers: `backend_tokenizer` encodes and decodes, and
    `chat_template` is None for a model without one. `tool_template` takes its place in a request
    with tools, where a model has one of its own for them. `special_tokens` maps "bos_token" and the
    like to their text.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        tool_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_template, self.tool_template = chat_template, tool_template

    def __call__(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Return the token ids of a text."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return Encoded(input_ids=encoded.ids)

    def __len__(self) -> int:
        """Return the number of tokens, those that were added included."""
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        several = [ids] if isinstance(ids, int) else list(ids)
        text = self.backend_tokenizer.decode(several, skip_special_tokens=skip_special_tokens)
        return str(text)

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """Return the token of an id as the vocabulary writes it; None for an id without one."""
        piece: str | None = self.backend_tokenizer.id_to_token(token)
        return piece

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens, those that were added included."""
        return dict(self.backend_tokenizer.get_vocab(with_added_tokens=True))

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that were added to the vocabulary, by id."""
        return dict(sorted(self.backend_tokenizer.get_added_tokens_decoder().items()))

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the tokens that were added to the vocabulary."""
        return {added.content: token for token, added in self.added_tokens_decoder.items()}

    @property
    def bos_token_id(self) -> int | None:
        return self._id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        return self._id("pad_token")

    def _id(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        found: int | None = None if token is None else self.backend_tokenizer.token_to_id(token)
        return found

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Sequence[Message] | None = None,
        documents: Sequence[Message] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = False,
        **variables: object,
    ) -> str:
        """Return the text of a conversation; see `chat_template.render`, which says what it raises.

        `variables` are what the template reads beside the messages.
        """
        if tokenize:
            raise ValueError("tokenize: got True; expected False, then encode the text")
        template = template_for(self, with_tools=tools is not None)
        if not template:
            raise ValueError("the model has no chat template")
        return render(
            template,
            conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **{**self.special_tokens, **variables},
        )


def template_for(tokenizer: Tokenizer, *, with_tools: bool) -> str:
    """Return the chat template of requests with tools, or of others; nothing where there is none.
    `tokenizer` may be one of transformers' as well."""
    own: str | None = getattr(tokenizer, "tool_template", None) if with_tools else None
    return own or getattr(tokenizer, "chat_template", None) or ""


def template_variables(tokenizer: Tokenizer, *, with_tools: bool) -> list[str]:
    """Return the variables that the chat template reads beside those of every conversation."""
    read = variables_of(template_for(tokenizer, with_tools=with_tools))
    return sorted(read - GIVEN - {f"{role}_token" for role in ROLES})


def load_tokenizer(folder: Path, name: str) -> Tokenizer:
    """Return the tokenizer of a model's folder; transformers converts it where there is no
    tokenizer.json. Raises ModelError saying what is missing or cannot be read."""
    if not (folder / FILE).is_file():
        return _converted(folder, name)
    config = {**read_optional_json(folder / LEGACY[1]), **read_optional_json(folder / CONFIG)}
    try:
        backend = Backend.from_file(str(folder / FILE))
    except Exception as error:  # the library raises nothing more precise
        raise ModelError(f"{name}: {folder / FILE} cannot be read: {error}") from error
    try:
        if backend.padding is not None:
            config.setdefault("pad_token", backend.padding["pad_token"])
        special = {f"{role}_token": config.get(f"{role}_token") for role in ROLES}
        texts = {role: _text(token) for role, token in special.items() if token}
        _add_tokens(backend, config, list(special.values()))
        return Tokenizer(backend, texts, *_chat_templates(folder, config))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{name}: {folder / CONFIG} cannot be read: {error}") from error


def _converted(folder: Path, name: str) -> Tokenizer:
    # Imported here: it takes seconds, and a folder with a tokenizer.json does not need it.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        others = [vocabulary for vocabulary in VOCABULARIES if (folder / vocabulary).is_file()]
        what = "copy the one that the model was published with"
        if others:
            reason = " ".join(str(error).split())
            what = f"{' and '.join(others)} cannot be converted to one: {reason}"
        raise ModelError(f"{name}: no {FILE} in {folder}; {what}") from error
    if not tokenizer.is_fast:
        raise ModelError(f"{name}: only a slow tokenizer in {folder}; expected {FILE}")
    stated = tokenizer.chat_template
    templates = _by_name(stated) if isinstance(stated, Mapping) else (stated, None)
    return Tokenizer(tokenizer.backend_tokenizer, tokenizer.special_tokens_map, *templates)


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)


def _add_tokens(backend: Backend, config: Mapping[str, Any], special: Sequence[Any]) -> None:
    """Add the tokens that only tokenizer_config.json names, in the order of their ids. Those in its
    `added_tokens_decoder` go before what tokenizer.json says of the same tokens, as in
    transformers."""
    present = {
        added.content: _flags(added) for added in backend.get_added_tokens_decoder().values()
    }
    listed = config.get("added_tokens_decoder") or {}
    wanted = [listed[token] for token in sorted(listed, key=int)]
    stated = len(wanted)
    for field in MORE_SPECIAL:
        more = config.get(field) or ()
        special = [*special, *(more.values() if isinstance(more, Mapping) else more)]
    roles = {_text(token) for token in special if token}
    wanted += [token for token in special if token]
    for place, token in enumerate(wanted):
        content = _text(token)
        flags = token if isinstance(token, Mapping) else {}
        chosen = {flag: bool(flags[flag]) for flag in FLAGS if flag in flags}
        added = AddedToken(content, **chosen)
        if content in present and (place >= stated or _flags(added) == present[content]):
            continue
        added.special = added.special or content in roles
        present[content] = _flags(added)
        add = backend.add_special_tokens if added.special else backend.add_tokens
        add([added])


def _flags(added: AddedToken) -> tuple[bool, ...]:
    return tuple(getattr(added, flag) for flag in FLAGS)


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the template, and that for requests with tools where there is one: from files of their
    own, or from the configuration, where a model may have several by name."""
    if (folder / TEMPLATE).is_file():
        named = folder / NAMED_TEMPLATE
        tools = named.read_text(encoding="utf-8") if named.is_file() else None
        return (folder / TEMPLATE).read_text(encoding="utf-8"), tools
    legacy = read_optional_json(folder / LEGACY[0])
    template = legacy.get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        return _by_name({entry["name"]: entry["template"] for entry in template})
    return (None if template is None else str(template)), None


def _by_name(templates: Mapping[str, str]) -> tuple[str | None, str | None]:
    tools = templates.get("tool_use")
    return templates.get("default", tools), tools


class Pieces:
    """The texts of single tokens, each decoded once, where the text of several tokens is theirs
    side by side: not so for decoders that look at a token's neighbours."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        backend = tokenizer.backend_tokenizer
        self._decode, self._name = backend.decode, backend.id_to_token
        added = backend.get_added_tokens_decoder().items()
        self._special = frozenset(token for token, text in added if text.special)
        self._side_by_side = isinstance(backend.decoder, decoders.ByteLevel)
        self._known: tuple[dict[int, str], dict[int, str]] = {}, {}

    def of(self, token: int, *, skip_special_tokens: bool) -> str:
        """Return the text of a token; "" if its neighbours are needed for that."""
        known = self._known[skip_special_tokens]
        piece = known.get(token)
        if piece is None:
            piece = ""
            if self._side_by_side:
                piece = str(self._decode([token], skip_special_tokens=skip_special_tokens))
            if UNFINISHED in piece:
                piece = ""
            known[token] = piece
        return piece

    def hides(self, token: int, *, skip_special_tokens: bool) -> bool:
        """Return whether decoders never see a token: a skipped special one, or an id of none."""
        return (skip_special_tokens and token in self._special) or self._name(token) is None
