"""Asks NVIDIA's management library about the GPUs; nothing else imports pynvml.

Every call can block for as long as the driver likes: this belongs on a lane. Import it only on a
node whose kernel has the driver.
"""

from holdfast.host.nvidia.nvml.library import Nvml
from holdfast.host.nvidia.nvml.loading import LIBRARY

__all__ = ["LIBRARY", "Nvml"]
