"""The stages data and features on a tiny chat target, and their sources."""

import json

import pytest
import torch
from safetensors import safe_open
from tiny_chat import write_tokenizer
from tiny_data import MASK, VOCAB, write_target
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel

from jetspec_sglang.drafters.training import features, fit
from jetspec_sglang.drafters.training.config import TrainConfig
from jetspec_sglang.drafters.training.data import ChatText, DataStage
from jetspec_sglang.drafters.training.errors import TrainError
from jetspec_sglang.drafters.training.generate import TransformersGenerator
from jetspec_sglang.drafters.training.shards import Folder, Sequence, Tokens
from jetspec_sglang.drafters.training.sources import Builtin, Row, heldout_rows, parse_row, read_rows
from jetspec_sglang.drafters.training.target import TextReader, load_model, target_layer_ids

QUESTIONS = [f"what is {a} and {b}?" for a in "abcdef" for b in "xyz"]


@pytest.fixture(scope="module")
def chat_target(tmp_path_factory):
    return write_tokenizer(write_target(tmp_path_factory.mktemp("chat")), VOCAB)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": q, "response": q[::-1] * 2} for q in QUESTIONS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def heldout(tmp_path):
    path = tmp_path / "heldout.jsonl"
    path.write_text("".join(json.dumps({"turns": [q]}) + "\n" for q in QUESTIONS[:3]))
    return path


@pytest.fixture
def make(tmp_path, prompts, heldout, chat_target):
    def settings(work: str = "work", **sections) -> TrainConfig:
        data = {"prompts": str(prompts), "heldout": str(heldout), "batch": 4, "max_new_tokens": 12}
        data |= {"generator": "transformers"} | sections.pop("data", {})
        feature = {"target_layer_ids": [0, 2]} | sections.pop("features", {})
        head = {"layers": 2, "block_size": 4, "mask_token_id": MASK}
        raw = {"target": str(chat_target), "work": tmp_path / work, "data": data, "features": feature}
        return TrainConfig.model_validate(
            raw | {"head": head, "fit": {"steps": 3, "tensorboard": False}} | sections
        )

    return settings


@pytest.fixture(scope="module")
def generator(chat_target):
    return TransformersGenerator(chat_target, (0, 2), torch.float32)


class TokensOnly:
    """A generator that sees no features, as SGLang's engine."""

    gives_features = False

    def __init__(self, generator):
        self.generator = generator

    def answer(self, *args, **how):
        return (Tokens(answer.tokens, answer.prompt_len) for answer in self.generator.answer(*args, **how))


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}


def test_answers_are_the_targets_own_with_what_it_saw(chat_target, generator):
    text, model = ChatText(chat_target), load_model(chat_target, torch.float32)
    prompts = [text.prompt(Row([{"role": "user", "content": question}])) for question in QUESTIONS[:5]]
    answers = {
        tuple(a.tokens[: a.prompt_len].tolist()): a for a in generator.answer(prompts, 12, text.stop_ids)
    }
    assert set(answers) == {tuple(prompt) for prompt in prompts}
    for answer in answers.values():
        out = model(answer.tokens[None], output_hidden_states=True)
        after = slice(answer.prompt_len - 1, len(answer.tokens) - 1)
        assert torch.equal(out.logits[0, after].argmax(-1), answer.tokens[answer.prompt_len :])
        taps = torch.cat([out.hidden_states[tap + 1][0] for tap in (0, 2)], dim=-1)[:-1]
        torch.testing.assert_close(answer.taps[:-1].float(), taps, rtol=0.01, atol=0.01)
        top = out.logits[0, after].log_softmax(-1).topk(16)
        assert torch.equal(answer.teacher.ids[after], top.indices.int())
        torch.testing.assert_close(answer.teacher.logprobs[after].float(), top.values, rtol=0, atol=0.01)
        ended = int(answer.tokens[-1]) in text.stop_ids
        assert ended or len(answer.tokens) - answer.prompt_len == 12


def test_features_of_whole_texts_equal_those_of_generation(chat_target, generator):
    text = ChatText(chat_target)
    prompts = [text.prompt(Row([{"role": "user", "content": q * n}])) for n, q in enumerate(QUESTIONS[:7], 1)]
    answers = list(generator.answer(prompts, 12, text.stop_ids))
    again = TextReader(chat_target, (0, 2), torch.float32).read(answers, whole=False)
    for one, other in zip(answers, again, strict=True):
        assert isinstance(other, Sequence)
        assert torch.equal(one.tokens, other.tokens)
        torch.testing.assert_close(one.taps.float(), other.taps.float(), rtol=0.01, atol=0.01)
        assert torch.equal(one.teacher.ids, other.teacher.ids)
        torch.testing.assert_close(one.teacher.logprobs, other.teacher.logprobs, rtol=0, atol=0.01)


def test_stages_one_by_one_give_what_the_one_pass_gives(make, generator, chat_target):
    """Tokens are equal, and features up to bf16, in which the stage `features` runs the target."""
    passing, apart = make("passing"), make("apart")
    DataStage(passing, chat_target, generator).run()
    DataStage(apart, chat_target, TokensOnly(generator)).run()
    assert not list(passing.tokens_folder.glob("*"))
    assert not list(apart.features_folder.glob("*"))
    with pytest.raises(TrainError, match="run `data` and `features` first"):
        fit.run(apart, chat_target)
    steps = []
    features.run(apart, str(chat_target), lambda done, _: steps.append(done))
    assert steps == list(range(1, len(Folder(apart.tokens_folder).names()) + 2))
    one, other = Folder(passing.features_folder), Folder(apart.features_folder)
    assert one.names() == other.names()
    for name in one.names() + one.names("heldout"):
        for index in range(len(one.shard(name).prompt_lens)):
            a, b = one.shard(name).read(index), other.shard(name).read(index)
            assert torch.equal(a.tokens, b.tokens)
            assert (a.taps.float() - b.taps.float()).norm() < 0.03 * a.taps.float().norm()
    assert one.shard(one.names()[0]).meta == other.shard(one.names()[0]).meta
    fit.run(apart, chat_target)


def test_prompts_end_the_stage_and_held_out_ones_stay_out(make, generator, chat_target):
    config = make()
    seen = []
    DataStage(config, chat_target, generator).run(report=lambda done, rate: seen.append(done))
    folder, text = Folder(config.features_folder), ChatText(chat_target)

    def prompts_of(kind: str) -> list[str]:
        texts = []
        for name in folder.names(kind):
            with safe_open(config.features_folder / name, "pt") as file:
                offsets, lens = file.get_tensor("offsets"), file.get_tensor("prompt_lens")
                texts += [
                    text.tokenizer.decode(file.get_tensor("tokens")[start : start + length])
                    for start, length in zip(offsets[:-1], lens, strict=True)
                ]
        return texts

    training, held = prompts_of("shard"), prompts_of("heldout")
    assert len(training) == len(set(training)) == len(QUESTIONS) - 3
    assert len(held) == 3
    assert all(any(question in text for text in held) for question in QUESTIONS[:3])
    assert not any(question in text for text in training for question in QUESTIONS[:3])
    assert seen == sorted(seen)
    assert seen[-1] == folder.response_tokens()


def test_a_stage_that_was_stopped_goes_on_and_loses_nothing(make, generator, chat_target):
    whole, parts = make("whole"), make("parts")
    DataStage(whole, chat_target, generator).run()

    class Dies(TokensOnly):
        gives_features = True
        calls = 0

        def answer(self, *args, **how):
            self.calls += 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return self.generator.answer(*args, **how)

    with pytest.raises(KeyboardInterrupt):
        DataStage(parts, chat_target, Dies(generator)).run()
    assert len(contents(parts.features_folder)) == 3
    half = parts.features_folder / "shard-00002.partial"
    half.write_bytes(b"half of a shard")
    DataStage(parts, chat_target, generator).run(worker=1, workers=2)
    DataStage(parts, chat_target, generator).run()
    half.unlink(missing_ok=True)
    assert contents(parts.features_folder) == contents(whole.features_folder)


def test_enough_tokens_end_the_stage(make, generator, chat_target):
    config = make(data={"response_tokens": 60})
    DataStage(config, chat_target, generator).run()
    folder = Folder(config.features_folder)
    assert folder.response_tokens() >= 60 > folder.response_tokens() - 4 * 12
    assert len(folder.names()) < len(QUESTIONS) / 4


def test_a_corpus_is_read_and_not_generated(make, generator, chat_target):
    config = make(data={"responses": "corpus"})
    DataStage(config, chat_target, generator).run()
    folder, text = Folder(config.tokens_folder), ChatText(chat_target)
    shard = folder.shard(folder.names()[0])
    assert not shard.has_features
    for index in range(4):
        row = shard.tokens(index)
        prompt, response = row.tokens[: row.prompt_len], row.tokens[row.prompt_len :]
        question = text.decode(prompt)[2:-2]
        assert question in QUESTIONS
        assert text.decode(response) == (question[::-1] * 2)[:12]
    assert "not the target's" in shard.meta["source"]


def test_plain_texts_begin_after_their_first_token(chat_target):
    text = ChatText(chat_target)
    got = text.answered(Row(text="abcdef"), 4)
    assert got.prompt_len == 1
    assert text.decode(got.tokens) == "abcde"
    assert text.answered(Row(text="ab"), 4).tokens[-1] == text.eos


def test_builtin_prompts_are_repeatable_and_leave_the_held_out_ones_out():
    heldout = heldout_rows("builtin")

    def write(openings, seed):
        return [f"{opening} {seed}" for opening in openings]

    sources = [Builtin(heldout, 5, write) for _ in range(2)]
    for number in (0, 1, 40):
        one, other = (source.batch(number, 10) for source in sources)
        assert one == other
        assert len(one) == 10
        assert not {row.question for row in one} & {row.question for row in heldout}
    assert sources[0].batch(40, 10) != sources[0].batch(41, 10)
    assert sum(row.question.endswith(tuple("0123456789")) for row in sources[0].batch(40, 10)) >= 4


@pytest.mark.parametrize(
    ("raw", "question", "response"),
    [
        ({"prompt": "q"}, "q", None),
        ({"prompt": "q", "response": "a"}, "q", "a"),
        ({"question": "q", "answer": "a"}, "q", "a"),
        ({"instruction": "q", "input": "more", "output": "a"}, "q\n\nmore", "a"),
        ({"turns": ["q", "r"]}, "q", None),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "q", "a"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "q", "a"),
    ],
)
def test_rows_of_usual_data_sets(raw, question, response):
    row = parse_row(raw, "here")
    assert (row.question, row.response) == (question, response)


def test_hub_data_sets_are_read_by_their_library(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    [row] = read_rows(str(tmp_path), "train")
    assert (row.question, row.response) == ("q", "a")


def test_what_does_not_suit_is_refused_with_the_way_out(
    make, generator, chat_target, tmp_path, heldout, monkeypatch
):
    def refused(match: str, **data) -> None:
        with pytest.raises(TrainError, match=match):
            DataStage(make(data=data), chat_target, generator).run()

    refused("can't be read as JSON lines", prompts=str(tmp_path / "no.jsonl"))
    refused("within reach.*give a JSONL file", prompts=str(tmp_path / "nothing"))
    refused("no row that is not held out", prompts=str(heldout))
    refused("built-in prompts have no answers", prompts="builtin", responses="corpus")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "", "topic": "t"}\n')
    refused(r"bad\.jsonl, line 1: a row needs.*it has question, topic", prompts=str(bad))
    bad.write_text('{"text": "t"}\n')
    refused("plain text has no prompt.*corpus", prompts=str(bad))
    bad.write_text('{"prompt": "t"}\n')
    refused("no answer of its own.*regenerate", prompts=str(bad), responses="corpus")
    with pytest.raises(TrainError, match="from 0 to 2: the output of the last one, 3"):
        target_layer_ids(make(features={"target_layer_ids": [3]}), AutoConfig.from_pretrained(chat_target))
    with pytest.raises(TrainError, match=r"no shards.*run the stage `data` first"):
        features.run(make("empty"), str(chat_target))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    refused("stage `data` needs about.*lower data.response_tokens", response_tokens=10**6)


def test_a_target_whose_layers_cannot_be_tapped_is_refused(tmp_path):
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=9)).save_pretrained(tmp_path)
    with pytest.raises(TrainError, match="GPT2LMHeadModel can't be tapped: take a target built like Llama"):
        load_model(tmp_path, torch.float32)
    with pytest.raises(TrainError, match="not a language model within reach"):
        load_model(tmp_path / "none", torch.float32)
