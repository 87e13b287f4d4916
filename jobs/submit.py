"""``spark-submit jobs/submit.py run``: the command ``statehouse`` on whatever cluster Spark was told of; on Databricks, too."""

import sys

from statehouse.cli import main

if __name__ == "__main__":
    if code := main():  # to Databricks any other end is a failure, also one with 0
        sys.exit(code)
