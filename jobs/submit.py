"""``spark-submit jobs/submit.py run``: the command ``statehouse`` on whatever cluster Spark was told of."""

from statehouse.cli import entry_point

if __name__ == "__main__":
    entry_point()
