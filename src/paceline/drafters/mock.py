"""Mock: drafts that mean nothing, at a cost that is really spent.

For the rule `synthetic`, which accepts by plan whatever was drafted. The tokens are arbitrary; the
time is that of real work, never of waiting: none at all, a share of the target's own forward for
each pass, or a whole drafter of random weights, read from its config.json.

    mock                          drafts for nothing
    mock,cost=0.1                 a tenth of the target's forward for each drafted token
    mock,cost=0.1,block=16        a tenth for each block of up to 16 tokens
    mock:drafter/config.json      a DFlash drafter or a small model of random weights
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.core import MAX_DRAFT_LEN, DraftBatch, InvalidRequest, Request
from paceline.drafters.base import Drafter, TargetInfo
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.kinds import (
    DRAFT_LENGTH,
    NETWORK_OPTIONS,
    BuildContext,
    DrafterSpec,
    Settings,
    real,
    register,
    whole,
)
from paceline.drafters.packing import Stretch, pack
from paceline.models.described import find_config
from paceline.models.json_files import read_json
from paceline.models.mocked import (
    is_dflash,
    mocked_dflash,
    mocked_model,
    read_config_file,
)
from paceline.models.networks import LeadingLayers, Share

KIND = "mock"
DEFAULT_LENGTH = 15  # what a block of 16 drafts behind its anchor
_STRIDE = 2654435761  # golden ratio of 2^32: neighbours in the draft are far apart


def mock_line(
    longest: int, *, config: Path | None = None, cost: float = 0.0, block: int = 1
) -> str:
    """Write the line of a mock whose drafts have up to `longest` tokens."""
    value = "" if config is None else f":{config}"
    spent = f",cost={cost},block={min(block, longest)}" if cost else ""
    return f"{KIND}{value}{spent},max_draft_len={longest}"


class MockDrafter(Drafter):
    """Drafts arbitrary tokens, as many as asked for; a pass costs `cost` of the target's forward.

    A draft of n tokens takes ceil(n / block) passes, one row of each request per pass: so many of
    the target's first layers, and its head or not, as come closest to that share of its weights.
    `share` says which, once attached.
    """

    def __init__(
        self,
        name: str = KIND,
        *,
        cost: float = 0.0,
        block: int = 1,
        max_draft_len: int = DEFAULT_LENGTH,
    ) -> None:
        self.name, self.max_draft_len = name, max_draft_len
        self.cost, self.block = cost, block
        self.parallel = not cost or block >= max_draft_len
        self.share: Share | None = None
        self._layers: LeadingLayers | None = None
        self._vocab_size = 0

    def attach(self, target: TargetInfo) -> None:
        self._vocab_size = target.vocab_size
        if self.cost:
            assert target.network is not None, "a share of its forward is spent"
            self._layers = LeadingLayers(target.network, self.cost)
            self.share = self._layers.share

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        drafts = list(map(self._draft, requests, lengths))
        if self._layers is not None:
            self._spend(self._layers, requests, drafts)
        return DraftBatch(tokens=drafts)

    def _draft(self, request: Request, length: int) -> list[int]:
        start = request.seed + len(request.tokens)
        length = min(length, self.max_draft_len)
        return [(start + i) * _STRIDE % self._vocab_size for i in range(length)]

    def _spend(
        self, layers: LeadingLayers, requests: Sequence[Request], drafts: Sequence[list[int]]
    ) -> None:
        """Run the passes of a round: a request takes part in as many as its own draft needs, with
        the next slot of its draft in each."""
        passes = [-(-len(draft) // self.block) for draft in drafts]
        for turn in range(max(passes, default=0)):
            taking = [r for r, count in zip(requests, passes, strict=True) if count > turn]
            layers.forward(
                pack([Stretch(r.blocks, len(r.tokens) - 1 + turn, r.tokens[-1:]) for r in taking])
            )


_SPENT = {"cost": real(0.0, 1.0), "block": whole(1, MAX_DRAFT_LEN)} | DRAFT_LENGTH


@register(KIND, value=True)
def _build(spec: DrafterSpec, context: BuildContext) -> Drafter:
    if spec.value is not None:
        settings = context.network_settings | spec.settings(DRAFT_LENGTH | NETWORK_OPTIONS)
        settings.pop("draw", None)  # random weights need no q: `synthetic` judges them by plan
        return _network(spec.name, spec.value, settings)
    settings = spec.settings(_SPENT)
    if "block" in settings and not settings.get("cost"):
        expected = "a cost beside it: a draft that costs nothing has no passes"
        raise InvalidRequest(f"drafter {spec.name}, block", settings["block"], expected)
    return MockDrafter(spec.name, **settings)


def _network(name: str, value: str, settings: Settings) -> Drafter:
    """Make the drafter of random weights that a config describes: DFlash or a small model."""
    path, dtype = find_config(value, f"drafter {name}"), settings["dtype"]
    if is_dflash(read_json(path)):
        del settings["device"]  # it runs where its target does, whose head it shares
        return DFlashDrafter(name, mocked_dflash(path, dtype=dtype), **settings)
    loaded = mocked_model(read_config_file(path), value, dtype=dtype, seed=1)
    # Confidence of random weights means nothing: no draft ends for want of it.
    settings = {"max_draft_len": DEFAULT_LENGTH, "min_token_prob": 0.0} | settings
    # Its ids mean nothing either: there are no tokens to compare with the target's.
    return DraftModelDrafter.of_model(name, loaded, settings, "mock", compares_tokens=False)
