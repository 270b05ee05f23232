"""`--jetspec-*` flags: taken out of argv, kept for the scheduler, and refused when wrong."""

import json
import os
from types import SimpleNamespace

import pytest

from jetspec_sglang import flags
from jetspec_sglang.config import CONFIG_ENV, FLAGS_ENV, ConfigError, resolve_config


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    # setenv first, so that whatever the code under test leaves is undone as well.
    for name in (FLAGS_ENV, CONFIG_ENV):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_both_spellings_are_taken_out():
    argv = [
        "--model-path",
        "m",
        "--jetspec-scoring",
        "accum_logp",
        "--port=1",
        "--jetspec-drafter=x",
        "--tp",
        "1",
    ]
    assert flags.take_jetspec_flags(argv) == ["--model-path", "m", "--port=1", "--tp", "1"]
    assert json.loads(os.environ[FLAGS_ENV]) == {"scoring": "accum_logp", "drafter": "x"}
    assert len(argv) == 8


def test_without_flags_nothing_remains():
    os.environ[FLAGS_ENV] = '{"scoring": "of an earlier call"}'
    assert flags.take_jetspec_flags(["--model-path", "m"]) == ["--model-path", "m"]
    assert FLAGS_ENV not in os.environ


def test_last_one_counts():
    flags.take_jetspec_flags(["--jetspec-scoring", "a", "--jetspec-scoring=b"])
    assert json.loads(os.environ[FLAGS_ENV]) == {"scoring": "b"}


def test_flag_reaches_the_config(monkeypatch):
    monkeypatch.setenv(CONFIG_ENV, '{"scoring": "of the site", "budget": 5}')
    flags.take_jetspec_flags(["--jetspec-scoring", "accum_logp"])
    head = SimpleNamespace(block_size=8, drafter="causal_parallel", conditioning="marginal")
    config = resolve_config(SimpleNamespace(), head)
    assert (config.scoring, config.budget) == ("accum_logp", 5)


@pytest.mark.parametrize(
    "argv", [["--jetspec-foo", "1"], ["--jetspec-foo=1"], ["--jetspec-score=accum_logp"]]
)
def test_unknown_flag_lists_the_known_ones(argv):
    with pytest.raises(ConfigError, match="use one of --jetspec-drafter, --jetspec-scoring"):
        flags.take_jetspec_flags(argv)


@pytest.mark.parametrize(
    "argv", [["--jetspec-scoring"], ["--jetspec-scoring="], ["--jetspec-scoring", "--port"]]
)
def test_missing_value(argv):
    with pytest.raises(ConfigError, match="needs a value; write --jetspec-scoring=NAME"):
        flags.take_jetspec_flags(argv)


def parser(algorithm):
    return lambda argv: SimpleNamespace(argv=argv, speculative_algorithm=algorithm, resolve_once=lambda: None)


def test_hook_passes_the_rest_on():
    args = flags.parse_with_jetspec_flags(parser("jetspec"), ["--jetspec-scoring=accum_logp", "--port", "1"])
    assert args.argv == ["--port", "1"]


def test_hook_leaves_other_servers_alone():
    assert flags.parse_with_jetspec_flags(parser(None), ["--port", "1"]).argv == ["--port", "1"]


@pytest.mark.parametrize("algorithm", [None, "EAGLE"])
def test_flags_without_the_algorithm_are_refused(algorithm, capsys):
    with pytest.raises(SystemExit) as stop:
        flags.parse_with_jetspec_flags(parser(algorithm), ["--jetspec-scoring=accum_logp"])
    assert stop.value.code == 2
    assert "add --speculative-algorithm JETSPEC" in capsys.readouterr().err


def test_wrong_flag_ends_like_argparse(capsys):
    with pytest.raises(SystemExit) as stop:
        flags.parse_with_jetspec_flags(parser("JETSPEC"), ["--jetspec-foo=1"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_mentions_them(capsys):
    def prepare(argv):
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        flags.parse_with_jetspec_flags(prepare, ["--help"])
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in flags.FLAGS)


def test_what_is_refused_ends_in_its_sentence_alone(capsys):
    def refuse() -> None:
        raise ConfigError("budget is 0; give 1 to 1024.")

    args = SimpleNamespace(speculative_algorithm="JETSPEC", resolve_once=refuse)
    with pytest.raises(SystemExit):
        flags.parse_with_jetspec_flags(lambda argv: args, [])
    assert capsys.readouterr().err == "jetspec: error: budget is 0; give 1 to 1024.\n"
