# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: a folder with a journal, checkpoints and the model."""
