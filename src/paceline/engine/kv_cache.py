"""Assign blocks of KV memory to requests: allocation, sharing of equal prefixes, eviction.

Only block numbers live here; the KV itself is the network's. A block holds BLOCK_SIZE tokens and is
shared by reference count. A full block of verified tokens is hashed together with everything before
it and the scope it belongs to (vLLM's chained block hash, with the API key's and cache_salt's scope
as the root), so an equal prefix of the same scope finds it. A free block keeps its content and hash
until it is needed for something else, oldest first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict

from paceline.core import Request
from paceline.models.batch import BLOCK_SIZE


class KVCache:
    """Block allocator with prefix sharing. Not thread-safe: the engine's thread owns it."""

    def __init__(self, num_blocks: int, prefix_cache: bool = True) -> None:
        self.num_blocks = num_blocks
        self.prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict((b, None) for b in range(num_blocks))
        self._chains: dict[str, list[bytes]] = {}
        # Which blocks hold a drafter's KV too, by name@version.
        self._draft_kv: dict[str, set[int]] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        return 1.0 - len(self._free) / self.num_blocks

    def match_prefix(self, request: Request) -> int:
        """Gives `request`, which holds no block, the cached blocks of its tokens.

        Returns how many tokens they cover: whole blocks, and never the last token, whose logits are
        wanted, nor a row whose log-probabilities are. Reference counts are raised.
        """
        assert not request.blocks, "a request matches a prefix before it owns blocks"
        chain = self._chains[request.id] = []
        if not self.prefix_cache:
            return 0
        most = request.scored if request.unscored else len(request.tokens) - 1
        for start in range(0, most // BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE):
            digest = self._digest(request, start, chain)
            block = self._block_of.get(digest)
            if block is None:
                break
            chain.append(digest)
            request.blocks.append(block)
            self._references[block] += 1
            self._free.pop(block, None)
        return len(request.blocks) * BLOCK_SIZE

    def allocate(self, request: Request, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens, or return False and change nothing."""
        needed = -(-num_tokens // BLOCK_SIZE) - len(request.blocks)
        if needed <= 0:
            return True
        if needed > len(self._free):
            return False
        for _ in range(needed):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            request.blocks.append(block)
        return True

    def commit(self, request: Request, draft_kv: tuple[str, int] | None = None) -> None:
        """Hashes the blocks that verified, computed tokens have filled since the last call.

        `draft_kv` is the pinned drafter's key and how many leading tokens hold its KV too.
        """
        if not self.prefix_cache:
            return
        chain = self._chains[request.id]
        while (len(chain) + 1) * BLOCK_SIZE <= request.computed:
            digest = self._digest(request, len(chain) * BLOCK_SIZE, chain)
            block = request.blocks[len(chain)]
            chain.append(digest)
            if digest not in self._block_of and self._hash_of[block] is None:
                self._block_of[digest] = block
                self._hash_of[block] = digest
        if draft_kv is not None:
            key, held = draft_kv
            marked = self._draft_kv.setdefault(key, set())
            # From the end: blocks before one that is marked are marked already.
            for index in range(min(held // BLOCK_SIZE, len(chain)) - 1, -1, -1):
                if request.blocks[index] in marked:
                    break
                marked.add(request.blocks[index])

    def held_draft_tokens(self, request: Request, key: str) -> int:
        """Leading tokens of a fresh prefix hit whose blocks hold drafter `key`'s KV as well."""
        held, marked = 0, self._draft_kv.get(key, ())
        for block in request.blocks:
            if block not in marked:
                break
            held += BLOCK_SIZE
        return held

    def forget_drafter(self, key: str) -> None:
        """Forget which blocks hold the KV of drafter `key`, whose memory is gone."""
        self._draft_kv.pop(key, None)

    def release(self, request: Request) -> None:
        """Gives every block of `request` back. Hashed ones stay findable until they are reused."""
        # The tail of a prefix is less likely to be shared than its head: let it go first.
        for block in reversed(request.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)
        request.blocks.clear()
        self._chains.pop(request.id, None)

    def unused_block(self) -> int | None:
        """A free block to write anything into, its cached content forgotten; None if all are in
        use."""
        block = next(iter(self._free), None)
        if block is not None:
            self._forget(block)
        return block

    def forget_prefix(self, request: Request) -> None:
        """Let nobody else find the blocks of `request`: what they hold cannot be trusted."""
        for block in request.blocks:
            self._forget(block)

    def repair(self, running: list[Request]) -> None:
        """Make the bookkeeping anew from the blocks that `running` requests hold. Every cached
        prefix is forgotten, so that later requests compute theirs again."""
        self._block_of, self._draft_kv = {}, {}
        self._hash_of = [None] * self.num_blocks
        self._references = [0] * self.num_blocks
        for request in running:
            for block in request.blocks:
                self._references[block] += 1
        free = (block for block, count in enumerate(self._references) if count == 0)
        self._free = OrderedDict.fromkeys(free)
        self._chains = {request.id: self._chains.get(request.id, []) for request in running}

    def _digest(self, request: Request, start: int, chain: list[bytes]) -> bytes:
        parent = chain[-1] if chain else hashlib.blake2b(request.salt, digest_size=16).digest()
        ids = array("I", request.tokens[start : start + BLOCK_SIZE])
        return hashlib.blake2b(parent + ids.tobytes(), digest_size=16).digest()

    def _forget(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._hash_of[block] = None
        for marked in self._draft_kv.values():
            marked.discard(block)

    def check_integrity(self, running: list[Request]) -> None:
        """Raises AssertionError naming the first block that is neither free nor owned exactly as
        often as it is referenced: a leak or a double free."""
        owners = [0] * self.num_blocks
        for request in running:
            for block in request.blocks:
                owners[block] += 1
        for block in range(self.num_blocks):
            count, free = self._references[block], block in self._free
            owned = owners[block]
            assert owned == count, f"block {block}: {count} references, {owned} owners"
            assert free == (count == 0), f"block {block}: {count} references but free={free}"
        for digest, block in self._block_of.items():
            assert self._hash_of[block] == digest, f"block {block}: hash table disagrees"
        assert set(self._chains) <= {r.id for r in running}, "hash chains of finished requests"
