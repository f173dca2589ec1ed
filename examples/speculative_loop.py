"""Speculative decoding in one file: draft, verify in one forward pass, match, commit."""

import sys

import numpy as np

from paceline.kernels import ops
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.loader import load_model
from paceline.models.networks import build_network


def look_up(tokens, length):
    """Draft by prompt look-up: copy what followed the last two tokens when they came before."""
    for end in range(len(tokens) - 1, 1, -1):
        if tokens[end - 2 : end] == tokens[-2:]:
            return tokens[end : end + length]
    return []  # nothing to copy: this round is plain decoding


def choose(logits, position, temperature, seed):
    """Return the target's token. Its noise depends on seed, position and token id alone."""
    if temperature == 0:
        return ops.argmax(logits)
    key = {"seed": seed, "choice": 0, "position": position}
    return ops.gumbel_argmax(logits, inv_temperature=1 / temperature, **key)


def generate(network, prompt, end_ids, max_tokens, draft_length, temperature=0.0, seed=0):
    """Yield (draft, committed tokens) for each round. A draft length of 0 is plain decoding."""
    table = np.arange(-(-(len(prompt) + max_tokens) // BLOCK_SIZE), dtype=np.int32)[None]
    network.allocate_kv(table.size)  # one sequence has all the blocks, in order
    tokens, computed, finished = list(prompt), 0, False
    while not finished:
        left = len(prompt) + max_tokens - len(tokens)
        draft = look_up(tokens, min(draft_length, left - 1))  # the round's last token is no draft
        # One forward computes the tokens that have no KV yet (the prompt, later the anchor alone)
        # and the draft. It reads every weight once, as it would for a single row.
        ids = np.array(tokens[computed:] + draft, dtype=np.int32)
        rows = np.arange(len(ids), dtype=np.int32)
        verifying = rows[len(ids) - 1 - len(draft) :]  # the anchor's row and the draft's rows
        batch = ForwardBatch(ids, computed + rows, np.int32([0, len(ids)]), table, verifying)
        committed = []
        for logits in network.forward(batch).logits:  # a row counts if the drafts before it matched
            position = len(tokens) - len(prompt) + len(committed)
            committed.append(choose(logits, position, temperature, seed))
            finished = committed[-1] in end_ids or len(committed) == left
            if finished or committed != draft[: len(committed)]:
                break  # the token differs from the draft, or it is the bonus after a full match
        computed = len(tokens) + len(committed) - 1  # the next round overwrites KV of rejected rows
        tokens += committed  # the last of them is the next round's anchor
        yield draft, committed


if __name__ == "__main__":
    model = load_model("smollm2-135m")
    network, _ = build_network(model, max_positions=1024)
    prompt = model.tokenizer(sys.argv[1]).input_ids
    for draft, new in generate(network, prompt, model.eos_ids, max_tokens=64, draft_length=8):
        print(f"{len(draft)} drafted, {len(new)} committed  {model.tokenizer.decode(new)!r}")
