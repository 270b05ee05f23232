"""`jetspec check` and the frame of the command line."""

import json
import subprocess
import sys

import pytest
import tiny
from typer.testing import CliRunner

from jetspec_sglang import check, cli, upstream
from jetspec_sglang.drafters.head_config import CorrectorConfig

runner = CliRunner()


@pytest.fixture
def few_checks(monkeypatch):
    """Replace the environment's checks, some of which import all of SGLang."""

    def put(*checks):
        monkeypatch.setattr(check, "CHECKS", checks)

    put(("fine", lambda subject: "all good"))
    return put


def refuse(subject):
    raise check.CheckFailed("it is [broken]; mend it.")


def crash(subject):
    raise ZeroDivisionError("of all things")


def test_all_pass(few_checks):
    done = runner.invoke(cli.app, ["check"])
    assert done.exit_code == 0
    assert "pass  fine" in done.output


def test_a_failure_is_shown_as_it_is_and_ends_with_one(few_checks):
    few_checks(("broken", refuse), ("crashing", crash), ("fine", lambda subject: "reached"))
    done = runner.invoke(cli.app, ["check"])
    assert done.exit_code == 1
    assert "it is [broken]; mend it." in done.output
    assert "ZeroDivisionError: of all things" in done.output
    assert "reached" in done.output


def test_json_holds_the_same(few_checks, tmp_path):
    few_checks(("broken", refuse))
    file = tmp_path / "check.json"
    assert runner.invoke(cli.app, ["check", "--json", str(file)]).exit_code == 1
    assert json.loads(file.read_text()) == {
        "passed": False,
        "checks": [{"name": "broken", "passed": False, "detail": "it is [broken]; mend it."}],
    }


def test_builtin_head_and_target_go_by_name(few_checks):
    done = runner.invoke(cli.app, ["check", "--head", "builtin:gru", "--target", "builtin"])
    assert done.exit_code == 0, done.output
    assert "hidden size, vocabulary and layers agree" in done.output


def test_missing_head_and_target_fail(few_checks):
    done = runner.invoke(cli.app, ["check", "--head", "/no/head", "--target", "/no/target"])
    assert done.exit_code == 1
    assert done.output.count("FAIL") == 3


@pytest.mark.parametrize("kind", [None, "gru", "mlp"])
def test_a_head_is_named_with_its_corrector(tmp_path, kind):
    corrector = None
    if kind is not None:
        corrector = CorrectorConfig(kind=kind, rank=4, state_size=8 if kind == "gru" else None, candidates=8)
    head = tiny.tiny_head(tmp_path / "head", corrector=corrector)
    said = check.head_readable(check.Subject(head=str(head)))
    assert said.startswith(
        f"causal_parallel with a path corrector ({kind}), " if kind else "causal_parallel, "
    )


def test_plugin_hidden_by_environment(monkeypatch):
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.setenv("SGLANG_PLUGINS", "other, another")
    with pytest.raises(check.CheckFailed, match="add jetspec to it"):
        check.plugin_enabled(check.Subject())
    monkeypatch.setenv("SGLANG_PLUGINS", "other, jetspec")
    check.plugin_enabled(check.Subject())
    monkeypatch.setenv("SGLANG_PLATFORM", "some_npu")
    with pytest.raises(check.CheckFailed, match="unset it"):
        check.plugin_enabled(check.Subject())


def test_wrong_cpu_setting_is_a_line_not_an_exit(monkeypatch):
    monkeypatch.setenv("JETSPEC_CPU", "perhaps")
    with pytest.raises(check.CheckFailed, match="JETSPEC_CPU must be 1"):
        check.platform_chosen(check.Subject())


def test_other_sglang_fails_its_line(few_checks, monkeypatch):
    monkeypatch.setattr(upstream, "installed_version", lambda: "0.6.0")
    few_checks(("sglang", check.sglang_version))
    done = runner.invoke(cli.app, ["check"])
    assert done.exit_code == 1
    assert "pip install sglang==0.5.23" in " ".join(done.output.split())


def test_help_lists_all_commands_and_imports_none():
    code = (
        "import sys, time; from jetspec_sglang.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print('IMPORTED', sorted({'torch', 'sglang', 'jetspec_sglang.check'} & set(sys.modules)))\n"
        "print('SECONDS', time.process_time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert all(name in done.stdout for name in cli.COMMANDS)
    assert "IMPORTED []" in done.stdout
    assert float(done.stdout.split("SECONDS")[1]) < 1


def test_every_command_loads():
    def check_all(table):
        for name, entry in table.items():
            assert cli.load(name, entry).name == name
            check_all(entry.commands if isinstance(entry, cli.Group) else {})

    check_all(cli.COMMANDS)


def test_unknown_command_is_refused():
    done = runner.invoke(cli.app, ["nope"])
    assert done.exit_code == 2
    assert "nope" in done.output
