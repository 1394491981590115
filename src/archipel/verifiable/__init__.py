# SPDX-License-Identifier: Apache-2.0
"""Sums that anybody can verify: GOPA with commitments and proofs on a public bulletin."""

from archipel.verifiable.protocol import run
from archipel.verifiable.verification import verify

__all__ = ["run", "verify"]
