"""The program that vLLM's Python runs: it computes features, and ends with the run that started it.

A run that is killed closes stdin, but nobody reads that while a model is loaded or a text computed.
"""

import os
import signal
import threading
import time


def end_with(parent):
    """End this process, and those that it has started, once `parent` is not its parent."""
    while os.getppid() == parent:
        time.sleep(0.5)
    if os.getpgrp() == os.getpid():  # the run has put it into a session of its own
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main():
    threading.Thread(target=end_with, args=[os.getppid()], daemon=True).start()
    import paceline_features  # after that, since vLLM takes long

    paceline_features.main()


if __name__ == "__main__":
    main()
