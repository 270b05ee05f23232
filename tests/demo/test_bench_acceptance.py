"""`jetspec bench acceptance`: its numbers on rows made by hand, and its table from a raw file."""

import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from jetspec_sglang.bench_acceptance import Answered, measure, summary
from jetspec_sglang.builtin.prompts import Prompt
from jetspec_sglang.cli import app


def row(rule="match", prompt=0, sample=0, rounds=10, accepted_drafts=10, temperature=1.0) -> Answered:
    return Answered(
        rule=rule,
        temperature=temperature,
        budget=16,
        prompt=prompt,
        domain="chat",
        sample=sample,
        completion_tokens=rounds + accepted_drafts + 1,
        rounds=rounds,
        accepted_drafts=accepted_drafts,
        decoded=rounds + accepted_drafts,
        decode_seconds=0.5,
        stage_seconds={"draft": 0.1, "build": 0.01, "verify": 0.3, "accept": 0.02, "commit": 0.02},
    )


def test_a_cell():
    rows = [row(), row(sample=1, accepted_drafts=14), row(rule="traversal"), row(temperature=0.5)]
    cells = summary(rows)
    assert list(cells) == [(0.5, 16, "match"), (1.0, 16, "match"), (1.0, 16, "traversal")]
    cell = cells[1.0, 16, "match"]
    assert cell.tau == pytest.approx(2.2)
    # Deviations of -2 and 2 from 12 drafts in 10 rounds: variance of the sum 16, over 20 rounds.
    assert cell.error == pytest.approx(4 / 20 / 2.2)
    assert cell.tokens_per_second == pytest.approx(44)
    assert cell.round_ms == pytest.approx(45)
    assert cell.rule_ms == pytest.approx(3)


def test_prompts_that_differ_are_no_error():
    """Samples of a prompt agree, prompts don't: nothing is uncertain about these prompts."""
    rows = [row(prompt=p, sample=s, accepted_drafts=5 * p) for p in range(3) for s in range(2)]
    assert summary(rows)[1.0, 16, "match"].error == 0


def test_the_table_comes_from_the_raw_file(tmp_path):
    raw = tmp_path / "raw.jsonl"
    rows = [
        row(rule=rule, sample=s, accepted_drafts=n)
        for rule, n in (("match", 8), ("traversal", 10))
        for s in (0, 1)
    ]
    raw.write_text("\n".join(json.dumps(line) for line in ({"machine": {}}, *map(asdict, rows))) + "\n")
    shown = CliRunner().invoke(app, ["bench", "acceptance", "--from", str(raw)])
    assert shown.exit_code == 0, shown.output
    assert "1.800" in shown.output
    assert "2.000" in shown.output
    assert "1.111" in shown.output


class Fake:
    """A server whose counters grow by one round of a millisecond a stage with every answer."""

    url = "http://nowhere"

    def __init__(self):
        self.asked = 0

    def info(self):
        seconds = dict.fromkeys(("draft", "build", "verify", "accept", "commit"), self.asked / 1000)
        return {"internal_states": [{"jetspec": {"stage_seconds": seconds, "accepted_drafts_histogram": {}}}]}


def test_configurations_take_turns_on_every_prompt(monkeypatch):
    server, calls = Fake(), []

    def ask(server, tokens, max_new_tokens, *, stream_interval, temperature, custom_params):
        server.asked += 1
        calls.append((tokens, temperature, custom_params["jetspec"]))
        made = row()
        return type("A", (), {"token_ids": range(21), **asdict(made)})()

    class Words:
        def tokens(self, texts):
            return texts

    monkeypatch.setattr("jetspec_sglang.bench_acceptance.ask", ask)
    prompts = [Prompt("chat", ("one", "later")), Prompt("code", ("two",))]
    configurations = [(1.0, 16, "match"), (0.6, 64, "traversal")]
    rows = list(measure(server, Words(), prompts, configurations, samples=2, max_new_tokens=8))
    assert [(r.prompt, r.sample, r.rule) for r in rows] == [
        *((0, 0, "match"), (0, 0, "traversal"), (1, 0, "traversal"), (1, 0, "match")),
        *((0, 1, "match"), (0, 1, "traversal"), (1, 1, "traversal"), (1, 1, "match")),
    ]
    assert calls[1] == (("one",), 0.6, {"budget": 64, "acceptance": "traversal"})
    assert all(r.stage_seconds["verify"] == pytest.approx(0.001) for r in rows)
