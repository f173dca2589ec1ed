"""`paceline drafter doctor`: find why a DFlash drafter accepts less than it should.

Acceptance goes wrong in silence: features from the wrong layers, another RoPE, another template. So
the drafter is served on sample prompts, and three things are checked: that it is served as it was
trained (where its folder says how), that the serving path computes what the training form computes,
and that no other reading of the checkpoint predicts the target better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from paceline.core import ModelError, SamplingParams, SpeculationStats
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.reference import RecordedDraft, Recorder, Trained
from paceline.evaluate.paired import difference
from paceline.llm import LLM, encode_chat
from paceline.models.dflash.config import DFlashConfig
from paceline.models.loader import LoadedModel, load_model, template_digest
from paceline.models.tokenizer import Tokenizer

BETTER = 1.3  # another reading is the right one when it accepts so many times more
CLOSE = {"float32": 1e-3, "bfloat16": 0.1}  # relative error of logits that rounding explains
POOR = 1.5  # an acceptance length below this hardly pays


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `ok` None: the checkpoint does not say."""

    name: str
    ok: bool | None
    detail: str


@dataclass(slots=True)
class Report:
    """`acceptance[k]` is the share of rounds that accepted draft token k + 1, of the rounds that
    drafted it; `acceptance_length` includes the bonus token."""

    checks: list[Check] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)
    acceptance_length: float = 1.0
    rounds: int = 0

    @property
    def healthy(self) -> bool:
        return all(check.ok is not False for check in self.checks)

    @property
    def verdict(self) -> str:
        """One sentence: the first check that failed, or that nothing is wrong."""
        for check in self.checks:
            if check.ok is False:
                return f"{check.name}: {check.detail}."
        served = f"acceptance length {self.acceptance_length:.2f} incl. bonus"
        if self.acceptance_length < POOR:
            return (
                f"The drafter is served as it was trained, and still predicts little ({served}): "
                "it was trained on other text, for another model, or not enough."
            )
        return f"Nothing is wrong: {served}."

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"healthy": self.healthy, "verdict": self.verdict}


def examine(
    model: str,
    drafter: str,
    conversations: Sequence[Sequence[dict[str, str]]],
    max_tokens: int = 96,
    **options: Any,
) -> Report:
    """Serve `conversations` with the drafter (a spec, or a folder or hub id) and report.

    `options` are EngineConfig's. A drafter that is refused is reported, not raised.
    """
    report = Report()
    options |= {"draft_policy": "fixed", "prefix_cache": False}
    target = load_model(model)  # what is wrong with the model is no finding
    try:
        llm = LLM(model, drafter, **options)
    except ModelError as error:
        report.checks.append(Check("the checkpoint", False, str(error).removesuffix(".")))
        return report
    name, patient = next(iter(llm.engine.drafters.items()))
    if not isinstance(patient, DFlashDrafter):
        raise ModelError(f"drafter {drafter!r} is no DFlash drafter; expected a folder or hub id")
    report.checks.append(Check("the checkpoint", True, "complete, and made for this model"))
    recorder = Recorder(patient)
    llm.driver.wrap_drafter(name, lambda _: recorder)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    prompts = [encoded(llm.tokenizer, conversation) for conversation in conversations]
    results = llm.generate(prompts, params)
    stats = SpeculationStats.of(r for result in results for r in result.choices[0].rounds)
    report.rounds = stats.draft_rounds
    report.acceptance = [accepted / drafted for drafted, accepted in stats.by_position()]
    report.acceptance_length = stats.acceptance_length or 1.0
    texts = {f"generate-{i}#0": r.prompt_ids + r.token_ids for i, r in enumerate(results)}
    starts = {f"generate-{i}#0": len(r.prompt_ids) for i, r in enumerate(results)}
    longest = max(map(len, texts.values()))
    report.checks += provenance_checks(target, llm.engine.config.dtype, patient, longest)
    trained = Trained(llm.engine.runner.network, patient, texts)
    report.checks.append(serving_check(trained, recorder.drafts, llm.engine.config.dtype))
    report.checks.append(reading_check(trained, starts, target.config.rope.theta))
    return report


def encoded(
    tokenizer: Tokenizer,
    conversation: Sequence[Mapping[str, str]],
    variables: Mapping[str, object] | None = None,
) -> list[int]:
    """Return the ids of a conversation: under the chat template, to which `variables` go, or the
    bare text where the model has none."""
    if getattr(tokenizer, "chat_template", None):
        return encode_chat(tokenizer, conversation, variables=variables)
    text = "\n\n".join(message["content"] for message in conversation)
    return list(tokenizer(text)["input_ids"])


def provenance_checks(
    target: LoadedModel, dtype: str, drafter: DFlashDrafter, longest: int
) -> Iterator[Check]:
    """Compare what the folder says of the training with how the drafter is served."""
    provenance, config = drafter.checkpoint.provenance, drafter.config
    template = getattr(target.tokenizer, "chat_template", None) or ""
    served = {
        "target_layer_ids": ("layer ids", config.target_layer_ids),
        "mask_token_id": ("mask token", config.mask_token_id),
        "rope_theta": ("RoPE theta", config.layers.rope.theta),
        "template": ("chat template", template_digest(template)),
        "dtype": ("dtype", dtype),
        "window": ("window", drafter.window),
    }
    if provenance.target is not None:
        detail = f"trained for {provenance.target}, served with {target.name}"
        yield Check("the model", provenance.target == target.name or None, detail)
    if provenance.window is None and provenance.context is not None:
        del served["window"]  # what a draft sees is compared with the trained context below
    for key, (name, now) in served.items():
        trained = getattr(provenance, key)
        if trained is None:
            yield Check(name, None, f"served with {now}; the checkpoint does not say what with")
        else:
            detail = "trained and" if trained == now else f"trained with {trained},"
            yield Check(name, trained == now, f"{detail} served with {now}")
    if provenance.context is not None:
        sees = longest if drafter.window is None else min(longest, drafter.window)
        detail = f"trained on up to {provenance.context} tokens of context, and sees up to {sees}"
        if sees > provenance.context:
            detail += f"; serve it with --draft-window {provenance.context}"
        yield Check("context", sees <= provenance.context, detail)


def serving_check(trained: Trained, drafts: Sequence[RecordedDraft], dtype: str) -> Check:
    """Compare the draft logits of the serving path (cached, incremental) with those of the training
    form."""
    error = total = 0.0
    same = slots = 0
    for draft in drafts:
        anchor = torch.tensor([len(draft.tokens) - 1])
        count = len(draft.logits)
        (expected,) = trained.logits(trained.config, draft.request, anchor, count, draft.first)
        error += float((draft.logits - expected).square().sum())
        total += float((expected - expected.mean()).square().sum())
        same += int((draft.logits.argmax(-1) == expected.argmax(-1)).sum())
        slots += count
    if not slots:
        return Check("serving path", None, "nothing was drafted")
    relative = (error / total) ** 0.5
    detail = (
        f"logits differ from the training form's by {relative:.1e} of their spread, and "
        f"{100 * same / slots:.1f}% of {slots} draft tokens are the same"
    )
    return Check("serving path", relative <= CLOSE[dtype], detail)


def reading_check(trained: Trained, starts: dict[str, int], target_theta: float) -> Check:
    """Check that no other reading of the same weights predicts the target's answers better."""
    own = trained.accepted(trained.config, starts, 0)
    others = {
        label: trained.accepted(config, starts, shift)
        for label, config, shift in other_readings(trained, target_theta)
    }
    if not others or not own:
        return Check("other readings", None, "there is none to compare with")
    now = 1 + float(np.concatenate(own).mean())
    lengths = {label: 1 + float(np.concatenate(each).mean()) for label, each in others.items()}
    best = max(lengths, key=lambda label: lengths[label])
    gained = difference([new - old for new, old in zip(others[best], own, strict=True)])
    if gained.interval[0] > 0 and lengths[best] - 1 > BETTER * (now - 1) + 0.1:
        detail = (
            f"the weights fit better when read with {best}: acceptance length {lengths[best]:.2f} "
            f"instead of {now:.2f} incl. bonus on the target's own answers"
        )
        return Check("how the checkpoint is read", False, detail)
    detail = f"none of {len(lengths)} fits the weights better than the config does ({now:.2f})"
    return Check("other readings", True, detail)


def other_readings(
    trained: Trained, target_theta: float
) -> Iterator[tuple[str, DFlashConfig, int]]:
    """Yield the configs that a mistaken export or engine could have meant, with their shift of
    slots."""
    config = trained.config
    for by in (-1, 1):
        ids = tuple(layer + by for layer in config.target_layer_ids)
        if set(ids) <= set(trained.layers):
            yield f"layer ids {list(ids)} (off by one)", replace(config, target_layer_ids=ids), 0
    theta = config.layers.rope.theta
    for other in dict.fromkeys((target_theta, 1e4, 1e6, 1e7)):
        if other != theta:
            rope = replace(config.layers.rope, theta=other)
            layers = replace(config.layers, rope=rope)
            yield f"rope_theta {other:g}", replace(config, layers=layers), 0
    for causal in (False, True):
        attention = tuple(replace(kind, causal=causal) for kind in config.attention)
        if attention != config.attention:
            yield f"is_causal {causal}", replace(config, attention=attention), 0
    if any(kind.window for kind in config.attention):
        attention = tuple(replace(kind, window=None) for kind in config.attention)
        yield "no sliding window", replace(config, attention=attention), 0
    yield "slots shifted by one (as DSpark's)", config, 1
