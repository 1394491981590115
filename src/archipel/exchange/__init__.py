# SPDX-License-Identifier: Apache-2.0
"""What a round says: who talks, what is sent, and what the server is given."""
