"""Names of array types, for annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray: TypeAlias = NDArray[np.float64]
    BoolArray: TypeAlias = NDArray[np.bool_]
    SampleArray: TypeAlias = NDArray[np.float32]
else:
    # Annotations alone name these. Checking a command needs no array, and numpy takes .15 s to import.
    FloatArray = BoolArray = SampleArray = object
