"""For all tests; pytest also puts this folder on the import path, for the helpers beside this file."""

import signal

import torch

# One thread each: most of what is computed here is tiny, and beside it run other test files and servers.
torch.set_num_threads(1)

# Background jobs of scripts, and nohup, run deaf to these, and so would what the tests start and send them to:
# children inherit deafness. They don't inherit handlers.
for name in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(name) is signal.SIG_IGN:
        signal.signal(name, lambda *_: None)
