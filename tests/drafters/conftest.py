from pathlib import Path

import pytest
from tiny_data import write_shard, write_target


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def data_folder(target_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shard(folder / "shard-00000.safetensors", target_folder, sequences=12, seed=0)
    write_shard(folder / "heldout-00000.safetensors", target_folder, sequences=3, seed=1)
    return folder
