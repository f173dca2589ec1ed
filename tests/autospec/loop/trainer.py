"""Stands for `paceline train`: notes that it ran and what it read, and leaves a drafter.

trainer.py SET OUT NOTES INIT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

data, out, notes, init = map(Path, sys.argv[1:])
manifest = json.loads((data / "manifest.json").read_text())
rows = {shard["split"]: shard["rows"] for shard in manifest["shards"]}
with notes.open("a") as file:
    told = {"data": str(data), "init": str(init), "user_data": manifest["user_data"]}
    file.write(json.dumps({"rows": rows, **told}))
    file.write("\n")
(out / "drafter").mkdir()
(out / "drafter" / "config.json").write_text('{"trained": true}')
