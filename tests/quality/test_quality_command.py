"""`jetspec quality` as a user runs it, on a tiny chat model."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from jetspec_sglang import figures
from jetspec_sglang.cli import app
from jetspec_sglang.drafters.quality import cost
from jetspec_sglang.drafters.quality.rows import Measured
from jetspec_sglang.drafters.quality.summary import gaps, pairs


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch):
    monkeypatch.setattr(cost, "DRAFTED", (2, 4))
    monkeypatch.setattr(cost, "CONTEXTS", (8, 16))


@pytest.fixture
def prompts(tmp_path) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [{"domain": "maths", "turns": [f"what is {a}?"]} for a in "abc"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(*args: object):
    return CliRunner().invoke(app, ["quality", *map(str, args)])


def refused(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


def spelled(folders: dict[str, Path]) -> str:
    return ",".join(f"{label}={folder}" for label, folder in folders.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_everything_at_once(target, folders, prompts, tmp_path, dtype):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "html", "svg")}
    result = run(
        *("--heads", spelled(folders), "--target", target, "--prompts", prompts, "--limit", 2, "--rounds", 2),
        *("--budget", 8, "--dtype", dtype),
        *("--json", files["json"], "--html", files["html"], "--plot", files["svg"]),
    )
    assert result.exit_code == 0, result.output
    written = json.loads(files["json"].read_text())
    measured = Measured.model_validate(written)
    assert [each.label for each in measured.prompts] == ["what is a?", "what is b?"]
    assert {(each.prompt, each.number) for each in measured.rounds} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert list(measured.heads) == list(folders)
    assert measured.heads["diffusion"].drafted == 5
    assert written["summary"]["gaps"] == list(map(asdict, gaps(measured)))
    assert written["summary"]["pairs"] == list(map(asdict, pairs(measured)))
    assert {(row.head, row.context, row.drafted) for row in measured.cost} == {
        (label, context, drafted) for label in folders for context in (8, 16) for drafted in (2, 4)
    }
    assert all(row.draft_seconds > 0 and row.target_seconds > 0 for row in measured.cost)
    for text in ("Gap of the likeliest block", "Two heads", "paper: causal", "Cost c"):
        assert text in result.output
        assert text in files["html"].read_text()
    assert "<svg" in files["svg"].read_text()


def test_one_head_without_cost(target, folders, prompts):
    result = run(
        *("--heads", f"mine={folders['causal']}", "--target", target, "--prompts", prompts, "--no-cost")
    )
    assert result.exit_code == 0, result.output
    assert "mine" in result.output
    assert "Cost c" not in result.output
    assert "Two heads" not in result.output


def test_refusals(target, folders, prompts, tmp_path, monkeypatch):
    ours = ("--target", target, "--prompts", prompts)
    assert "write LABEL=FOLDER" in refused("--heads", folders["causal"], *ours)
    one = folders["causal"]
    assert "names a twice" in refused("--heads", f"a={one},a={one}", *ours)
    assert "there is no folder /no/such" in refused("--heads", f"a={one},b=/no/such", *ours)
    assert "is no model folder" in refused("--heads", f"a={tmp_path}", *ours)
    other = tiny.tiny_head(tmp_path / "other", target_layers=3)
    assert "trained for another target" in refused("--heads", f"a={one},b={other}", *ours)
    part = tiny.tiny_eagle_head(tmp_path / "part", draft_vocab=64)
    assert "a from 512, b from 64" in refused("--heads", f"a={one},b={part}", *ours)
    assert "can't be read" in refused("--heads", f"a={one}", "--target", target, "--prompts", "/no/file")
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"turns": ["x" * 600]}) + "\n")
    said = refused("--heads", f"a={one}", "--target", target, "--prompts", long)
    assert "Prompt 0 has 60" in said
    assert "leave it out" in said
    assert "no folder" in refused("--heads", f"a={one}", *ours, "--html", "/no/folder/page.html")
    assert ".svg or .png" in refused("--heads", f"a={one}", *ours, "--plot", tmp_path / "x.pdf")
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    assert "need matplotlib" in refused("--heads", f"a={one}", *ours, "--html", tmp_path / "page.html")


def test_answers_that_are_too_short(target, folders, prompts, monkeypatch):
    """All tokens end an answer."""
    from jetspec_sglang.drafters.training.data import ChatText

    made = ChatText.__init__

    def endless(self, target):
        made(self, target)
        self.stop_ids = set(range(tiny.VOCAB))

    monkeypatch.setattr(ChatText, "__init__", endless)
    result = run("--heads", f"a={folders['causal']}", "--target", target, "--prompts", prompts)
    assert result.exit_code == 1
    assert "No answer goes on for a block of 5 tokens" in result.stderr
