"""The digests that tell one target from another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from paceline.models.loader import identity, load_model, template_digest

from .tiny import save_model


def test_an_identity_follows_weights_tokenizer_and_template(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    save_model(folder)
    mine = identity(load_model(str(folder)))
    assert mine["name"] == "a" and len(mine["weights_sha256"]) == 64
    assert mine["template"] == template_digest("")
    moved = shutil.copytree(folder, tmp_path / "b")
    assert identity(load_model(str(moved))) == {**mine, "name": "b"}

    words = json.loads((moved / "tokenizer.json").read_text())
    (moved / "tokenizer.json").write_text(json.dumps(words))  # other bytes, same words
    other = identity(load_model(str(moved)))
    assert other["tokenizer_sha256"] != mine["tokenizer_sha256"]
    (moved / "chat_template.jinja").write_text("{{ messages }}")
    assert identity(load_model(str(moved)))["template"] == template_digest("{{ messages }}")
    save_model(moved, seed=1)
    assert identity(load_model(str(moved)))["weights_sha256"] != mine["weights_sha256"]


def test_several_weight_files_have_one_digest_that_knows_their_order(tmp_path: Path) -> None:
    save_model(tmp_path, max_shard_size="40KB")
    parts = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(parts) > 1
    before = identity(load_model(str(tmp_path)))["weights_sha256"]
    assert before == identity(load_model(str(tmp_path)))["weights_sha256"]
    data = bytearray(parts[-1].read_bytes())
    data[-1] ^= 1
    parts[-1].write_bytes(bytes(data))
    assert identity(load_model(str(tmp_path)))["weights_sha256"] != before
