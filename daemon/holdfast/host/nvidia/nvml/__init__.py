"""NVIDIA's management library. Nothing else imports pynvml.

Each call can block as long as the driver likes: run it on a lane. Import this only on a node whose
kernel has the driver.
"""

from holdfast.host.nvidia.nvml.library import Nvml
from holdfast.host.nvidia.nvml.loading import LIBRARY

__all__ = ["LIBRARY", "Nvml"]
