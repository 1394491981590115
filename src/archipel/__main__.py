# SPDX-License-Identifier: Apache-2.0
"""`python -m archipel` is `archipel`."""

from archipel.cli import main

if __name__ == "__main__":
    main()
