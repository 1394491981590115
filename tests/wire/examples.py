"""The parts of a wire that examples/wire shows, as a plugin's author would write them."""

import sys
from pathlib import Path

HERE = Path(__file__).parents[2] / "examples" / "wire"
sys.path.insert(0, str(HERE))

from clip_and_noise import ClipAndNoise  # noqa: E402
from int8 import Int8  # noqa: E402
from krum import Krum  # noqa: E402
from secure_sum import SecureSum  # noqa: E402

__all__ = ["HERE", "ClipAndNoise", "Int8", "Krum", "SecureSum"]
