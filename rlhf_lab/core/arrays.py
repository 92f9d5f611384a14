"""Names of array types, for annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray: TypeAlias = NDArray[np.float64]
    BoolArray: TypeAlias = NDArray[np.bool_]
    IntArray: TypeAlias = NDArray[np.int64]
    SampleArray: TypeAlias = NDArray[np.float32]
else:
    # Only annotations use these names. Checking a command needs no array, and importing numpy takes 0.15 s.
    FloatArray = BoolArray = IntArray = SampleArray = object
