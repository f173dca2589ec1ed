"""What speculation would buy: everything a user states, and the answer as plain JSON.

`predict` is what `paceline predict --json` writes and what the page's calculator draws.

**Stated.** `model`, `hardware` and `drafters` must be there, everything else has a default; a key
that is not listed is refused.

    model            a listed name, or {"config": {a Hugging Face config.json}, "name": "mine"}
    hardware         a listed name, or an object with the fields of a Hardware
    precision        one name for all ("bf16", "fp8", …), or an object by component; default: what
                     the config says
    batch            requests decoded together; default 1
    context          tokens in each request's cache; default 4096
    tensor_parallel  devices that share each layer; default 1
    max_draft        longest draft length looked at, 1 to 64; default 16
    calibration      a preset's name, or the object that `paceline roofline fit` writes
    drafters         1 to 3 objects:
      kind           ideal, mtp, eagle3, draft_model, dflash, ngram, suffix
      name           default: the kind
      cost           of one pass, as a fraction of the target's AR step; or
      config         the drafter's own config, from which it is computed; or
      seconds        of one look-up (ngram, suffix; default 0)
      block          tokens that one pass drafts (dflash; the anchor not counted)
      acceptance     {"alpha": 0.8}, {"al": 3.5, "draft_length": 7} (al incl. bonus),
                     {"conditional": [0.8, 0.75]}, {"unconditional": [0.8, 0.6]},
                     {"first": 0.77, "al": 4.42, "draft_length": 15}, {"beta": [a, b]},
                     {"accepted": [0, 3, 1], "drafted": 7}
    batches          of `by_batch` and `heat_map`; default 1, 2, 4, … 1024 and `batch`
    contexts         of `by_context`; default none, and then there is no such view

**Answer.** Times are milliseconds, AL counts the bonus token. Two tiers always: "ceiling" is the
pure roofline, "calibrated" has efficiencies and overheads. Lists that belong together have equal
lengths; a batch that does not fit the memory has null. "ar" is speculation off.

    format           "paceline-prediction/1"
    scenario         what was stated, with the defaults filled in
    model            name, parameters, active_parameters, weight_bytes, kv_bytes_per_token,
                     state_bytes (of one request)
    hardware         name, memory, memory_bandwidth, devices
    calibration      name, and its numbers
    capacity         max_batch at this context
    ar.TIER          step_ms, tpot_ms, tokens_per_second_per_request, tokens_per_second_per_device,
                     components {name: ms}
    ar_by_batch      batch, and under TIER tokens_per_second_per_request and …_per_device
    drafters[i]
      name, kind, block, max_draft, acceptance
      curve          draft_length 0 … max_draft, acceptance_length (the toy model's speedup), and
                     under TIER: speedup, step_ms, verify_ms, draft_ms, tpot_ms,
                     tokens_per_second_per_request, tokens_per_second_per_device,
                     break_even_length (the AL at which this draft length is as fast as AR)
      optimum.TIER   one row of the curve with draft_length and acceptance_length, and
                     components {name: ms, "draft": ms}
      by_batch       batch, and under TIER what is best there: draft_length, acceptance_length,
                     speedup, tpot_ms, tokens_per_second_per_request, tokens_per_second_per_device
                     (the last two against each other are the Pareto front)
      by_context     the same over context, or null
      heat_map       batch, draft_length, and under TIER rows of speedups, [batch][draft_length]
      commits        P(a round commits 1, 2, … tokens) at the calibrated optimum
      flags          {"paceline", "vllm", "sglang"}: lines to launch with at the calibrated
                     optimum; null where the engine has no such drafter
    notes            sentences to show beside the numbers
"""

from __future__ import annotations
