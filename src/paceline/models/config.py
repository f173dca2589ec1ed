"""The shape and options of a network, read from a Hugging Face config. A field that the network
code would not honour is refused here, so that no model runs as something slightly different from
what its authors trained."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.rope import RopeConfig, read_rope

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Attention:
    """The positions that a layer's rows see. A causal layer's rows see none after their own; the
    rows of other layers see all rows that their sequence brings to the forward. `window` counts
    positions to either side, the row's own included; None is no window."""

    window: int | None = None
    causal: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and options of one decoder network. `sliding_window` is None unless some layer really
    uses a window; such a model is served up to its window, where windowed is full attention."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    max_position_embeddings: int
    rope: RopeConfig
    sliding_window: int | None = None

    @property
    def max_context(self) -> int:
        """Most tokens (prompt and output) that the model can attend over as trained."""
        longest = self.max_position_embeddings
        if self.rope.type == "yarn":
            longest = max(longest, int(self.rope.original_max_positions * self.rope.factor))
        return longest if self.sliding_window is None else min(longest, self.sliding_window)


def read_config(
    fields: ConfigFields,
    family: str,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    head_dim: int | None = None,  # a default; without one it is hidden_size / num_attention_heads
    sliding_window: int | None = None,
) -> ModelConfig:
    """Build the ModelConfig from the fields that all families share and the family's own options.
    Raises ModelError for a field that is missing, malformed or not supported."""
    refuse_unsupported(fields)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        expected = f"a divisor of num_attention_heads ({heads})"
        raise fields.error("num_key_value_heads", kv_heads, expected)
    if head_dim is None and not fields.has("head_dim") and hidden % heads:
        raise ModelError(
            f"{fields.where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}, "
            "and head_dim is not given"
        )
    dim = fields.integer("head_dim", default=head_dim or hidden // heads)
    if dim % 2:
        raise fields.error("head_dim", dim, "an even number, for rotary embedding")
    max_positions = fields.integer("max_position_embeddings")
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        max_position_embeddings=max_positions,
        rope=read_rope(fields, max_positions),
        sliding_window=sliding_window,
    )


def token_ids(value: object) -> list[int]:
    """Return the tokens of a field that holds one id, several or none."""
    ids = value if isinstance(value, list) else [value]
    return [token for token in ids if isinstance(token, int)]


def refuse_unsupported(fields: ConfigFields) -> None:
    """Raise ModelError for options that change the arithmetic in ways we don't implement."""

    def refuse(found: str, supported: str) -> ModelError:
        return ModelError(f"{fields.where}: {found}; supported: {supported}")

    if fields.get("quantization_config"):
        method = fields.section("quantization_config").get("quant_method") or "unknown"
        supported = "unquantised bfloat16, float16 or float32 weights, or a GGUF file"
        raise refuse(f"quantization_config ({method}) is not supported", supported)
    activation = fields.get("hidden_act") or "silu"
    if activation != "silu":
        raise refuse(f"hidden_act {activation!r} is unsupported", "silu")
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if experts := fields.get(key):
            found = f"{key} = {experts}: mixtures of experts are not supported"
            raise refuse(found, "dense models")
    for unknown in sorted(set(fields.words("layer_types")) - set(LAYER_TYPES)):
        raise refuse(f"layer_types has {unknown!r}", ", ".join(LAYER_TYPES))
