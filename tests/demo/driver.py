"""`jetspec demo`, `eval` or `tree` as a process of its own, on fake servers and a fake tokenizer."""

import sys
from pathlib import Path
from types import SimpleNamespace

import typer

from jetspec_sglang import demo, eval, serving, tree_command


class FakeChat:
    def __init__(self, target: Path) -> None:
        pass

    def tokens(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


serving.PROGRAM = (str(Path(__file__).with_name("fake_server.py")),)
for module in (demo, eval):
    module.Chat = FakeChat
for module in (demo, eval, tree_command):
    module.model_folders = lambda target, head: (Path("/target"), head or Path("/head"))
eval.read_head = lambda head: SimpleNamespace(drafter="causal_parallel", block_size=8)

if __name__ == "__main__":
    command = {"demo": demo.demo, "eval": eval.evaluate, "tree": tree_command.tree}[sys.argv.pop(1)]
    typer.run(command)
