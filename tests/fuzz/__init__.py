"""A fuzzer of the real server in a child process: `python -m tests.fuzz --bodies 100000 --seed 1`.

`values`, `grammars` and `bodies` make requests, each a function of (seed, index); `wire` has
clients that misuse sockets; `storm` sends; `bystander` measures what others notice; `run` starts
the server, restarts it when it dies, and judges.
"""
