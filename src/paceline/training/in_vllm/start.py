"""The program that vLLM's Python runs: it computes features, and ends with the run that started it.
Its arguments are the process of that run, and the folder that paceline_features writes to.

A run that is killed closes stdin, but nobody reads that while a model is loaded or a text computed.
"""

import os
import shutil
import signal
import sys
import threading
import time


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def end_with(run, folder):
    """Remove the folder of features, and end this process and those that it has started, once the
    process `run` is over: it is there no more, or it was the parent and is so no longer."""
    is_parent = os.getppid() == run
    while is_there(run) and (not is_parent or os.getppid() == run):
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():  # the run has put it into a session of its own
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main():
    run, folder = int(sys.argv[1]), sys.argv[2]
    threading.Thread(target=end_with, args=[run, folder], daemon=True).start()
    import paceline_features  # after that, since vLLM takes long

    paceline_features.main()


if __name__ == "__main__":
    main()
