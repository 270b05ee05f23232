"""For all tests; pytest also puts this folder on the import path, for the helpers beside this file."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(request):
    """One thread where nothing is large: tiny operations are only slowed down by more, and so is other work."""
    if request.node.get_closest_marker("server") is not None:  # these also compute with a real model
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
