"""NVIDIA's management library. Nothing else imports pynvml.

Each call can block as long as the driver likes: run it on a lane. Import this only on a node whose
kernel has the driver.
"""

from holdfast.host.nvidia.nvml.answers import LIBRARY
from holdfast.host.nvidia.nvml.library import Nvml

__all__ = ["LIBRARY", "Nvml"]
