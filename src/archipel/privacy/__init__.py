# SPDX-License-Identifier: Apache-2.0
"""Privacy: what is promised and kept, noise that is safe to release, and what it costs."""
