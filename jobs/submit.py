"""``spark-submit jobs/submit.py run``: the command ``statehouse`` on whatever cluster Spark was told of."""

import sys

from statehouse.cli import main

if __name__ == "__main__":
    sys.exit(main())
