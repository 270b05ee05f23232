"""For all tests; pytest also puts this folder on the import path, for the helpers beside this file."""

import torch

# One thread each: most of what is computed here is tiny, and beside it run other test files and servers.
torch.set_num_threads(1)
