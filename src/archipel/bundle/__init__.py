# SPDX-License-Identifier: Apache-2.0
"""A finished model in one folder, to be applied anywhere: weights, columns, scale, card.

Nothing in it is a pickle, and no code in it is run unless its user says so.
"""

from archipel.bundle.applying import Bundle, Predictions, load_bundle

__all__ = ["Bundle", "Predictions", "load_bundle"]
