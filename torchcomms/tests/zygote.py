"""A process that has imported torch once and forks children that run scripts: `zygote.py SOCKET_DESCRIPTOR`.

A request is JSON `{"argv", "env"}` with the descriptors of stdin, stdout, stderr and of a socket for the answers: the
pid at once, the exit code (negative for a signal) in the end. Every child has a guardian that waits for it.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from importlib import import_module

# Optimizers import torch._dynamo, which takes as long as torch itself.
IMPORTED = ("torch", "torch._dynamo", "torch.distributed", "torchcomms.cli", "torchcomms.launcher", "torchcomms.comm")


def serve(requests):
    """Fork a child for every request; in the child, return its argv; in the zygote, return None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for guardians
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            return None
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            return guard(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def guard(request, descriptors):
    """Fork the child and wait for it; only the child returns."""
    *streams, answers = descriptors
    child = os.fork()
    if child:
        for stream in streams:
            os.close(stream)
        os.write(answers, f"{child}\n".encode())
        os.write(answers, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)
    os.close(answers)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    return request["argv"]


def run(argv):
    """Run the script and exit as the interpreter would, less the seconds that it takes to dismantle torch's modules."""
    sys.argv = argv
    code = 0
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # a child's collector would copy every page it looks at
    argv = serve(socket.socket(fileno=int(sys.argv[1])))
    if argv is not None:
        run(argv)
    os._exit(0)
