"""`jetspec train` from prompts to a head, as a user runs it, on a tiny chat model."""

import json
from pathlib import Path

import pytest
import tiny
from tiny_chat import write_tokenizer
from typer.testing import CliRunner

from jetspec_sglang.cli import app
from jetspec_sglang.drafters.checkpoint import read_head_config
from jetspec_sglang.drafters.training.shards import Folder


@pytest.fixture(scope="module")
def chat_target(tmp_path_factory):
    return write_tokenizer(tiny.tiny_target(tmp_path_factory.mktemp("chat")), tiny.VOCAB)


@pytest.fixture
def recipe(tmp_path, chat_target) -> Path:
    prompts = [{"prompt": f"what is {a} and {b}?", "response": f"{a}{b}" * 9} for a in "abcd" for b in "wxyz"]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (tmp_path / "heldout.jsonl").write_text('{"prompt": "who are you?"}\n')
    path = tmp_path / "recipe.json"
    data = {
        "prompts": str(tmp_path / "prompts.jsonl"),
        "heldout": str(tmp_path / "heldout.jsonl"),
        "batch": 8,
    }
    raw = {"target": str(chat_target), "work": str(tmp_path / "work"), "data": data | {"max_new_tokens": 16}}
    raw |= {"head": {"layers": 2, "block_size": 4, "mask_token_id": 3}}
    raw |= {"features": {"target_layer_ids": [0, 1]}, "fit": {"steps": 20, "batch_anchors": 16}}
    path.write_text(json.dumps(raw))
    return path


def train(recipe: Path, *args: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["train", "--config", str(recipe), *args])
    assert result.exit_code == status, result.output
    return " ".join(result.output.split())


def test_all_stages_in_order_and_again(recipe, tmp_path):
    output = train(recipe)
    assert "data: " in output
    assert "held-out τ" in output
    head = tmp_path / "work" / "head"
    assert read_head_config(head).drafter == "causal_parallel"
    assert "answers of the target to prompts.jsonl" in (head / "README.md").read_text()
    status = train(recipe, "--status")
    assert "2 shards" in status
    assert "a checkpoint; step 20" in status
    assert "a head" in status
    assert "step" not in train(recipe, "--stage", "fit")  # it was finished


def test_a_corpus_by_single_stages(recipe, tmp_path):
    changes = [
        "--set",
        "data.responses=corpus",
        "--set",
        "fit.tensorboard=false",
        "--set",
        "fit.objective=reverse_kl",
    ]
    train(recipe, "--stage", "data", *changes)
    assert Folder(tmp_path / "work" / "tokens").response_tokens() > 200
    assert "run `data` and `features` first" in train(recipe, "--stage", "fit", *changes, status=1)
    assert "features: 3 of 3 shards" in train(recipe, "--stage", "features", *changes)
    assert "features: all there" in train(recipe, "--stage", "features", *changes)
    assert "loss" in train(recipe, "--stage", "fit", *changes)
    train(recipe, "--stage", "export", *changes, "--set", f"export.folder={tmp_path}/elsewhere")
    assert "prompts.jsonl itself, not the target's" in (tmp_path / "elsewhere" / "README.md").read_text()
    assert '"objective": "reverse_kl"' in (tmp_path / "elsewhere" / "README.md").read_text()


def test_online_features_need_no_shards_of_them(recipe, tmp_path):
    output = train(recipe, "--set", "features.mode=online", "--set", "fit.tensorboard=false")
    assert "features: online" in output
    assert not (tmp_path / "work" / "features").exists()
    assert "whole distributions" in (tmp_path / "work" / "head" / "README.md").read_text()


def test_faults_are_told_in_a_sentence(recipe):
    output = train(recipe, "--set", "fit.stesp=1", "--set", "head.layers=0", status=1)
    assert "fit.stesp: Extra inputs are not permitted" in output
    assert "head.layers: Input should be greater than or equal to 1" in output
    assert "is not a model within reach" in train(recipe, "--set", "target=/no/such/model", status=1)


def test_a_head_that_cannot_be_is_refused_before_there_is_data(recipe, tmp_path):
    output = train(recipe, "--set", "head.mask_token_id=99999999", status=1)
    assert output.startswith("no such head for this target: mask_token_id 99999999 outside the vocabulary")
    assert "pydantic" not in output
    assert "fit.start: " in train(recipe, "--set", "fit.start=builtin:nope", status=1)
    assert not (tmp_path / "work").exists()


def test_a_target_that_sglang_does_not_capture_is_refused(recipe, tmp_path):
    from transformers import GPT2Config

    GPT2Config(architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path / "gpt2")
    output = train(recipe, "--set", f"target={tmp_path}/gpt2", status=1)
    assert "GPT2LMHeadModel, has no set_dflash_layers_to_capture" in output
    assert "Take a target whose class has it" in output


@pytest.mark.server
def test_the_engine_answers_as_the_cpu_generator_does(chat_target):
    import torch

    from jetspec_sglang.drafters.training.data import ChatText
    from jetspec_sglang.drafters.training.generate import TransformersGenerator
    from jetspec_sglang.drafters.training.sources import Row
    from jetspec_sglang.train_engine import EngineGenerator

    text = ChatText(chat_target)
    prompts = [text.prompt(Row([{"role": "user", "content": f"what is {a}?"}])) for a in "abcdefgh"]
    ours = TransformersGenerator(chat_target, (0, 1), torch.float32).answer(prompts, 24, text.stop_ids)
    expected = {tuple(answer.tokens.tolist()) for answer in ours}
    more = ("--dtype", "float32", "--max-total-tokens", "2048", "--context-length", "128")
    with EngineGenerator(str(chat_target), *more) as generator:
        answers = list(generator.answer(prompts, 24, text.stop_ids))
        sampled = list(generator.answer(prompts[:1] * 4, 24, text.stop_ids, sample=True))
    assert {tuple(answer.tokens.tolist()) for answer in answers} == expected
    assert [answer.prompt_len for answer in answers] == [len(prompt) for prompt in prompts]
    assert len({tuple(answer.tokens.tolist()) for answer in sampled}) > 1
