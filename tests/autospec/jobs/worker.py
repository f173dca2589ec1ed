"""The command of jobs in tests: counts up to a number, slowly, in a file, and goes on from there.

    python worker.py OUT STEPS [--resume]

It writes a line into OUT/journal at its start and its end, and "twice" where another one runs.
"""

import fcntl
import os
import sys
import time
from pathlib import Path

STEP_SECONDS = 0.03


def main(out: Path, steps: int, resumed: bool) -> None:
    lock = os.open(out / "running", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(out, "twice")
    note(out, "resumed" if resumed else "started")
    count = out / "best"
    done = int(count.read_text()) if count.exists() else 0
    while done < steps:
        done += 1
        beside = out / f"best.{os.getpid()}"
        beside.write_text(str(done))
        beside.rename(count)
        print("step", done, flush=True)
        time.sleep(STEP_SECONDS)
    note(out, "ended")


def note(out: Path, word: str) -> None:
    with (out / "journal").open("a") as journal:
        journal.write(word + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "--resume" in sys.argv)
