"""The platform activates itself only where nothing else could serve, and obeys an explicit wish."""

import os
import subprocess
import sys

import pytest

from jetspec_sglang import cpu
from jetspec_sglang.cpu import accelerators


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in (
        "JETSPEC_CPU",
        "SGLANG_USE_CPU_ENGINE",
        "SGLANG_PLATFORM",
        *accelerators.VISIBILITY_VARIABLES,
    ):
        # Set first, so that whatever activate() writes is undone too.
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(cpu, "other_platform_plugins", list)
    monkeypatch.setattr(cpu, "find_accelerator", lambda: None)


def test_on_without_an_accelerator():
    assert cpu.activate() == cpu.PLATFORM_CLASS


def test_off_with_an_accelerator(monkeypatch):
    monkeypatch.setattr(cpu, "find_accelerator", lambda: "NVIDIA GPU")
    assert cpu.activate() is None


def test_off_beside_another_platform_plugin(monkeypatch):
    monkeypatch.setattr(cpu, "other_platform_plugins", lambda: ["vendor"])
    assert cpu.activate() is None


@pytest.mark.parametrize(("variable", "value"), [("JETSPEC_CPU", "1"), ("SGLANG_PLATFORM", "jetspec_cpu")])
def test_forced(monkeypatch, variable, value):
    monkeypatch.setattr(cpu, "find_accelerator", lambda: "NVIDIA GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(variable, value)
    assert cpu.activate() == cpu.PLATFORM_CLASS
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("variable", "value"), [("JETSPEC_CPU", "0"), ("SGLANG_USE_CPU_ENGINE", "1")])
def test_forbidden(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert cpu.activate() is None


def test_forbidding_wins_over_naming_the_platform(monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "jetspec_cpu")
    monkeypatch.setenv("JETSPEC_CPU", "0")
    assert cpu.activate() is None


def test_a_wrong_value_is_one_sentence(monkeypatch):
    monkeypatch.setenv("JETSPEC_CPU", "yes")
    with pytest.raises(SystemExit, match=r"^jetspec: JETSPEC_CPU must be 1 .* not 'yes'\.$"):
        cpu.activate()


def test_two_cpu_engines_are_refused(monkeypatch):
    monkeypatch.setenv("JETSPEC_CPU", "1")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    with pytest.raises(SystemExit, match="two different CPU engines"):
        cpu.activate()


@pytest.mark.parametrize("node", ["nvidia0", "nvidiactl", "dxg", "davinci_manager", "hl0", "mtgpu0"])
def test_device_files_are_seen(tmp_path, node):
    (tmp_path / node).touch()
    assert accelerators.find_accelerator(str(tmp_path)) is not None


@pytest.mark.parametrize("node", ["kfd", "dri/renderD128", "accel/accel0", "nvidia-caps"])
def test_files_of_plain_graphics_do_not_count(tmp_path, node):
    path = tmp_path / node
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert accelerators._accelerator_of_torch_build(str(tmp_path)) is None
    assert accelerators.find_accelerator(str(tmp_path)) is None


def test_kfd_counts_for_a_rocm_build(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert accelerators.find_accelerator(str(tmp_path)) is None
    (tmp_path / "kfd").touch()
    assert accelerators.find_accelerator(str(tmp_path)) == "AMD GPU"


def test_deciding_does_not_start_the_cuda_runtime():
    code = (
        "import sys, jetspec_sglang.cpu as cpu; cpu.find_accelerator(); "
        "import torch; assert not torch.cuda.is_initialized(); assert 'sglang' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
