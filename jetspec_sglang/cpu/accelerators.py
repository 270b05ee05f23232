"""Is there an accelerator? Answered from device files and torch's build, without starting any driver.

`torch.cuda.is_available()` would initialise the driver, which is slow and breaks a later `fork`. Device
files exist exactly where a process could open the device, also inside containers. An accelerator that is
merely hidden (`CUDA_VISIBLE_DEVICES=`) still counts as present: launchers hide devices from a parent
process whose workers will use them.
"""

from __future__ import annotations

import glob
import os
import sys
from importlib.util import find_spec

# Device files that only an accelerator's driver creates. (/dev/accel is not one: laptop NPUs have it.)
DEVICE_FILES = {
    "NVIDIA GPU": ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvhost-gpu", "nvgpu/*", "dxg"),
    "Ascend NPU": ("davinci[0-9]*", "davinci_manager"),
    "Gaudi HPU": ("hl[0-9]*",),
    "Moore Threads GPU": ("mtgpu*",),
}

# Torch extensions that bring a device of their own; installed means meant to be used.
VENDOR_PACKAGES = ("torch_npu", "habana_frameworks", "torchada", "torch_xla", "torch_mlu")

# Emptying these hides the devices from the runtimes that SGLang asks.
VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def find_accelerator(dev: str = "/dev") -> str | None:
    """Name the first accelerator found on this machine, or None. `dev` is replaced in tests."""
    for name, patterns in DEVICE_FILES.items():
        if any(glob.glob(os.path.join(dev, pattern)) for pattern in patterns):
            return name
    for package in VENDOR_PACKAGES:
        if find_spec(package) is not None:
            return package
    return _accelerator_of_torch_build(dev)


def _accelerator_of_torch_build(dev: str) -> str | None:
    """Devices whose files say little alone: /dev/kfd and /dev/dri exist on laptops with plain graphics.

    They count only if this build of torch could compute on them.
    """
    import torch

    if torch.version.hip is not None and os.path.exists(os.path.join(dev, "kfd")):
        return "AMD GPU"
    if getattr(torch.version, "xpu", None) and glob.glob(os.path.join(dev, "dri", "renderD*")):
        return "Intel GPU"
    if sys.platform == "darwin" and torch.backends.mps.is_available():
        return "Apple GPU"
    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return torch._C._get_privateuse1_backend_name()
    if sys.platform not in ("linux", "darwin"):
        return f"unknown (no detection on {sys.platform})"
    return None


def hide_accelerators(environ) -> None:
    """Make the forced CPU hold: SGLang prefers a visible GPU over any platform plugin's device."""
    for variable in VISIBILITY_VARIABLES:
        environ[variable] = ""
