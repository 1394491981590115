# SPDX-License-Identifier: Apache-2.0
"""The wire: steps between a party's upload and the server, one file each."""
