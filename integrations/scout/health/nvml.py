"""NVIDIA devices through NVML, where the package `nvidia-ml-py` and a driver are there."""

from __future__ import annotations

import importlib
from typing import Any

from typing_extensions import override

from lmr.integrations.scout.health.source import Finding, Source


class Nvml(Source):
    """Uncorrected memory errors, remapping failures and devices that no longer answer.

    Args:
        library: the module `pynvml`; imported when not given.
    """

    name = "nvml"

    def __init__(self, library: Any = None) -> None:
        self._nvml = library
        self._devices: dict[str, Any] = {}
        self._uncorrected: dict[str, int] = {}

    @override
    def start(self) -> bool:
        try:
            self._nvml = self._nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            for number in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                self._devices[f"gpu:{number}"] = handle
        except Exception:  # noqa: BLE001  no package, no driver, no device: NVML's errors are of its own making
            return False
        for name, handle in self._devices.items():
            self._uncorrected[name] = self._ask(self._count_uncorrected, handle) or 0
        return bool(self._devices)

    @override
    def look(self) -> list[Finding]:
        found = []
        for name, handle in self._devices.items():
            if self._is_lost(handle):
                found.append(Finding(name, "device_lost", "fatal", "NVML cannot reach it"))
                continue
            errors = self._ask(self._count_uncorrected, handle)
            if errors is not None and errors > self._uncorrected[name]:
                found.append(Finding(name, "ecc_uncorrected", "fatal", f"{errors - self._uncorrected[name]} more"))
                self._uncorrected[name] = errors
            remapped = self._ask(self._nvml.nvmlDeviceGetRemappedRows, handle)
            if remapped is not None and remapped[3]:
                found.append(Finding(name, "row_remap_failure", "fatal", "no spare rows are left"))
        return found

    def _count_uncorrected(self, handle: Any) -> int:
        nvml = self._nvml
        return int(
            nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        )

    def _is_lost(self, handle: Any) -> bool:
        try:
            self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError as error:
            return bool(getattr(error, "value", None) == self._nvml.NVML_ERROR_GPU_IS_LOST)
        return False

    def _ask(self, question: Any, handle: Any) -> Any:
        try:
            return question(handle)
        except self._nvml.NVMLError:  # this device does not count such errors
            return None

    @override
    def close(self) -> None:
        if self._devices:
            self._nvml.nvmlShutdown()
            self._devices = {}
