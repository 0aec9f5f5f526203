"""Types of the sequence arrays that logs return."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Seqs = npt.NDArray[np.uint64]

NO_SEQS: Seqs = np.empty(0, dtype=np.uint64)
